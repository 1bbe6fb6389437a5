"""A report in parts: each measured for a share of the time allowed, the whole written anew after every row that was measured.

What was measured so outlives a run that is cut short, and a part that fails says why while the others go on. A later run may
take over what an earlier one has measured. `python -m pytest_ecornn join` unites what several have measured apart. A report has
two files: Markdown to read, and JSON from which it is continued or joined.
"""

from __future__ import annotations

import argparse
import json
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import torch

from pytest_ecornn.reporting import files
from pytest_ecornn.reporting.markdown_syntax import document, escape
from pytest_ecornn.results.run_info import check_fingerprint
from pytest_ecornn.results.shard import Shard, shard_argument
from pytest_ecornn.results.typed_json import field_types
from pytest_ecornn.suites.on_cuda import exit_code
from pytest_ecornn.suites.published import staleness
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED, OUT_OF_MEMORY, reason
from pytest_ecornn.system import machine, memory
from pytest_ecornn.system.gpus.lock import gpu_id

_SAME = ("dirty", "version", "packages")  # of two machines, for rows of one to stand in the other's report
_UNFINISHED = "the run was over"  # why a part ended early that is going on, or was killed
_NEEDED = {"schema_version": int, "machine": dict, "allocator": str, "ended": dict, "rows": dict}  # of a report's JSON
_OWN = Path()  # --resume without a file


def from_json(kind: Any, value: Any) -> Any:
    """`value` as `kind`: a dataclass, dict, list, tuple or optional one of such, or what JSON has itself.

    A field that was added after `value` was written has its default. Raises TypeError for one without.
    """
    if is_dataclass(kind) and isinstance(kind, type):
        hints = field_types(kind)
        known = [field.name for field in fields(kind) if field.name in value]
        return kind(**{name: from_json(hints[name], value[name]) for name in known})
    origin, given = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else from_json(next(one for one in given if one is not types.NoneType), value)
    if origin is dict:
        return {key: from_json(given[1], one) for key, one in value.items()}
    if origin is list:
        return [from_json(given[0], one) for one in value]
    if origin is tuple:
        return tuple(from_json(of, one) for of, one in zip(given, value, strict=True))
    return value


@dataclass(frozen=True)
class Run:
    """The run of a process. parts: as asked. began: by time.time, 0 if unknown. gpu: distinguishes GPUs without naming them.

    shard: I/N where it measured one of N shares of the cases.
    """

    parts: list[str]
    seconds: float = 0.0
    began: float = 0.0
    gpu: str = ""
    shard: str = ""

    @classmethod
    def start(cls, parts: Sequence[str], shard: Shard | None = None) -> Run:
        gpu = gpu_id() if torch.cuda.is_available() else ""
        return cls(list(parts), began=time.time(), gpu=gpu, shard=str(shard or ""))

    def __str__(self) -> str:
        return ", ".join(self.parts)

    def is_beside(self, other: Run) -> bool:
        """Whether another run went on at the same time, as far as that is known."""
        together = 0 < self.began < other.began + other.seconds and 0 < other.began < self.began + self.seconds
        return together and other != self


def of_report(found: dict[str, Any]) -> list[Run]:
    """Returns a report's runs from its JSON. Older reports have only the seconds of the last run and of those before it."""
    if "runs" in found:
        return list(from_json(list[Run], found["runs"]))
    before = [Run([], seconds)] if (seconds := found.get("earlier_seconds", 0)) else []
    return [*before, Run(list(found["rows"]), found["seconds"])]


def describe(runs: Sequence[Run]) -> str:
    """How long they took, in the order in which they began, and what was measured at the same time."""
    latest = [run for run in runs if run == runs[-1] or run.is_beside(runs[-1])]
    text = f"made in {' and '.join(f'{run.seconds:.0f} s' for run in latest)}"
    if before := sum(run.seconds for run in runs if run not in latest):
        text += f", with rows of {before:.0f} s before"
    if apart := [run for run in runs if any(map(run.is_beside, runs))]:
        gpus = len({run.gpu for run in apart})
        text += f"; measured apart at the same time by {len(apart)} processes on {gpus} GPU{'s' * (gpus > 1)}"
        text += f": {'; '.join(dict.fromkeys(map(str, apart)))}"
    return text


@dataclass(frozen=True)
class Section:
    """`measure` takes a deadline of time.monotonic and makes rows. share: of the time allowed, what is left of it goes on.

    row: their type, where a later run may take them over. is_resumable: `measure` is given those rows and makes the others.
    groups: names of shares of such a part that can be asked for alone; then `measure` is given, last, which. is_sharded: it
    takes a Shard of the cases too, as `shard`.
    """

    measure: Callable[..., Iterator[Any]]
    render: Callable[[Sequence[Any]], str]
    share: float
    figures: Callable[[Sequence[Any]], dict[str, str]] = lambda rows: {}
    row: type | None = None
    is_resumable: bool = False
    groups: tuple[str, ...] = ()
    is_sharded: bool = False

    @classmethod
    def of(cls, module: Any, share: float, **others: Any) -> Section:
        """The part that a module is: its `measure`, `render` and `Row`, and `figures` where it draws some."""
        figures = {"figures": module.figures} if hasattr(module, "figures") else {}
        return cls(module.measure, module.render, share, row=module.Row, **figures, **others)

    def rows(self, deadline: float, earlier: Sequence[Any], groups: Sequence[str], shard: Shard | None) -> Iterator[Any]:
        given = [*([earlier] if self.is_resumable else []), *([groups] if self.groups else [])]
        return self.measure(deadline, *given, **({"shard": shard} if shard else {}))


@dataclass(frozen=True)
class ReportPlan:
    """name: of the report's files and the command. parts: in the order in which they run. order: in which they are read."""

    name: str
    title: str
    schema_version: int
    parts: Mapping[str, Section]
    order: Sequence[str]
    seconds: float

    def run(
        self, folder: Path, seconds: float, names: Sequence[str], resumed: Path | None = None, shard: Shard | None = None
    ) -> None:
        """The parts or groups named, the report written after each row. resumed: the JSON file of an earlier run."""
        start = time.monotonic()
        report = Report(self, machine.fingerprint(Path.cwd()), memory.configure_malloc())
        earlier = self._load_previous(resumed, report) if resumed else {}
        asked = self._asked(names)
        measured = {name: [row for row in rows if not missing(row)] for name, rows in earlier.items()}
        report.rows = {name: list(rows) for name, rows in earlier.items()}
        report.runs.append(Run.start(names, shard))

        def write(name: str, done: str) -> None:
            report.runs[-1] = replace(report.runs[-1], seconds=time.monotonic() - start)
            report.write(folder)
            print(f"{report.runs[-1].seconds:4.0f} s  {name}: {done}", flush=True)

        for name, deadline in self.deadlines(start, seconds, asked).items():
            report.ended[name], report.rows[name] = _UNFINISHED, []
            try:
                rows = self.parts[name].rows(deadline, measured.get(name, ()), asked[name], shard)
                _fill(report.rows[name], rows, measured.get(name, ()), partial(write, name))
                del report.ended[name]
            except Exception as error:
                report.ended[name] = reason(error)
                write(name, f"ended early: {report.ended[name]}")
            is_whole = not shard and len(asked[name]) == len(self.parts[name].groups) and name not in report.ended
            here = report.rows.get(name, [])
            known = {row.label for row in here}
            due = [row for row in earlier.get(name, ()) if missing(row) and (row.label in known or not is_whole)]
            report.rows[name] = merge_rows(here, due, name)  # what was measured of these stays
            report.write(folder)

    def _asked(self, names: Sequence[str]) -> dict[str, Sequence[str]]:
        """The parts to run, of each the groups: all where the part itself is named."""
        groups = {name: [one for one in part.groups if {name, one} & {*names}] for name, part in self.parts.items()}
        return {name: found for name, found in groups.items() if found or name in names}

    def joined(self, paths: Sequence[Path]) -> Report:
        """Returns one report of what these JSON files hold.

        Raises ValueError where one holds no such report, was made otherwise, or differs in a row.
        """
        found = {path: self.read(path) for path in paths}
        first, *_ = found
        whole = Report(self, found[first]["machine"], found[first]["allocator"])
        for path, one in found.items():
            pair = ({**report["machine"], "allocator": report["allocator"]} for report in (found[first], one))
            if different := machine.same_machine(*pair):
                raise ValueError(f"{path} cannot be joined: expected (as in {first}) and found: {'; '.join(different)}")
            for name, rows in self.rows(path, one).items():
                whole.rows[name] = merge_rows(whole.rows.get(name, []), rows, f"{path}, {name}")
            for name, why in one["ended"].items():
                whole.ended[name] = "; ".join(dict.fromkeys([*filter(None, [whole.ended.get(name)]), why]))
            whole.runs += [run for run in of_report(one) if run not in whole.runs]
        whole.runs.sort(key=lambda run: run.began)
        return whole

    def _load_previous(self, path: Path, report: Report) -> dict[str, list[Any]]:
        """Rows of another run, by part, with what it has not reached. Raises ValueError for another version or kind of GPU.

        Another commit may go on after one that has all files alike that the report is about.
        """
        found = self.read(path)
        then, now = found["machine"], report.machine
        pairs = [("GPU", _gpus(then), _gpus(now)), *((name, then[name], now[name]) for name in _SAME)]
        different = [f"{name} {one} and {other}" for name, one, other in pairs if one != other]
        if then["commit"] != now["commit"] and ((age := staleness.of_report(path)) is None or age.is_stale):
            different.append(f"commit {then['commit']} and {now['commit']}" + (f" ({age})" if age else ""))
        if different:
            raise ValueError(f"rows of {path} cannot stand in this report: {'; '.join(different)}")
        report.runs = of_report(found)
        return self.rows(path, found)

    def lacking(self, path: Path) -> list[str]:
        """The parts of a stored report of which a later run measures something. Raises ValueError as `read` and `rows` do."""
        found = self.read(path)
        rows, ended = self.rows(path, found), found["ended"]
        whole = [name for name in rows if ended.get(name) != _UNFINISHED and not any(map(missing, rows[name]))]
        return [name for name in self.parts if name not in whole]

    def read(self, path: Path) -> dict[str, Any]:
        """Returns a report's JSON. Raises ValueError, in one line, for a file that holds none."""
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(found["rows"], list):  # an older report of one part
                found |= {"rows": {next(iter(self.parts)): found["rows"]}, "allocator": "system default", "ended": {}}
            mistyped = [name for name in _NEEDED if not isinstance(found[name], _NEEDED[name])]
            check_fingerprint(found["machine"])
            _headline(found["machine"], "")
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error
        except (ValueError, RecursionError, LookupError, TypeError) as error:
            raise ValueError(
                f"{path}: expected the JSON of a report of {self.name} ({type(error).__name__}: {error})"
            ) from error
        if mistyped:
            raise ValueError(f"{path}: expected other types of {', '.join(mistyped)}")
        if found["schema_version"] != self.schema_version:
            raise ValueError(f"{path}: expected schema_version {self.schema_version}, got {found['schema_version']}")
        return found

    def rows(self, path: Path, found: dict[str, Any]) -> dict[str, list[Any]]:
        """Returns the rows of a report's JSON, by part. Raises ValueError where one is none, or of a part that is not read."""
        unread = [name for name in found["rows"] if not (name in self.parts and self.parts[name].row)]
        if unread:
            raise ValueError(f"{path}: rows of {', '.join(unread)} are only written, never read")
        try:
            return {name: [from_json(self.parts[name].row, row) for row in rows] for name, rows in found["rows"].items()}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path}: expected rows of {self.name} ({type(error).__name__}: {error})") from error

    def deadlines(self, start: float, seconds: float, names: Collection[str]) -> dict[str, float]:
        """Returns each part's deadline, in running order; after it the part begins nothing more. Spare time is the next's."""
        chosen = {name: part.share for name, part in self.parts.items() if name in names}
        whole = sum(chosen.values())
        return {name: start + seconds * spent / whole for name, spent in zip(chosen, accumulate(chosen.values()), strict=True)}

    def main(self, text: str | None, arguments: Sequence[str] | None = None, *options: argparse.ArgumentParser) -> int:
        """The command, which takes the given options as well. text: its first line says what it does. Returns the exit code."""
        parser = self._parser((text or "").partition("\n")[0], options)
        given = parser.parse_args(arguments)
        names = given.parts or list(self.parts)
        if given.shard and (whole := [name for name in self._asked(names) if not self.parts[name].is_sharded]):
            parser.error(f"--shard: expected parts that have cases to share, got {', '.join(whole)}")
        try:
            resumed = given.output / f"{self.name}.json" if given.resume is _OWN else given.resume
            measure = partial(self.run, given.output, given.seconds, names, resumed, given.shard)
            if given.device == "cuda":
                return exit_code(parser.prog, measure)
            measure()
            return 0
        except (OSError, ValueError) as error:
            parser.error(str(error))

    def _parser(self, description: str, options: Sequence[argparse.ArgumentParser]) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=self.name, description=description, parents=options)
        parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where the report and its plots go")
        parser.add_argument("--seconds", type=float, default=self.seconds, help="after which nothing more is begun")
        groups = {group: f"{group} is of {name}" for name, part in self.parts.items() for group in part.groups}
        help_text = "; ".join(["all of them unless given", *groups.values()])
        parser.add_argument("--parts", nargs="+", choices=[*self.parts, *groups], help=help_text)
        parser.set_defaults(resume=None, shard=None, device="cuda")
        if any(part.is_sharded for part in self.parts.values()):
            help_text = "measures one of N shares of the cases, as processes on one or several GPUs do at the same time"
            parser.add_argument("--shard", type=shard_argument, metavar="I/N", help=help_text)
        if any(part.row for part in self.parts.values()):
            help_text = (
                "goes on after an earlier run of this report, of FOLDER or of a JSON file: it takes over the rows of parts not"
                " named, and of some parts what was measured"
            )
            parser.add_argument("--resume", type=Path, nargs="?", const=_OWN, metavar="FILE", help=help_text)
        return parser


def _fill(found: list[Any], rows: Iterator[Any], earlier: Sequence[Any], write: Callable[[str], None]) -> None:
    """Written after each new row, but once for those of an earlier run and those that were not reached, which may be many."""
    late, known = 0, set(map(id, earlier))
    for row in rows:
        found.append(row)
        if id(row) in known:
            continue
        if NOT_REACHED in repr(row):
            late += 1
        else:
            write(row.label)
    if late:
        write(f"{late} not reached")


def _headline(fingerprint: dict[str, Any], allocator: str) -> str:
    """The machine in a line. Raises LookupError or TypeError where a fingerprint lacks what it names."""
    threads = f"{fingerprint['cores']} cores, {fingerprint['threads']['torch']} threads"
    return f"{machine.gpu_summary(fingerprint)}; {threads}; {allocator}"


def _gpus(found: dict[str, Any]) -> list[str]:
    return list((found["gpu"] or {}).get("names") or [])


def _lines(rows: Sequence[Any]) -> str:
    """JSON of a row a line: of hundreds that are written after each it takes little time, and shows what is new."""
    return ",".join(f"\n   {json.dumps(row, default=_fields)}" for row in rows)


def _fields(one: Any) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in fields(one)}


@dataclass
class Report:
    """The rows measured so far, by part. ended: why a part has no more rows. runs: in the order in which they began."""

    plan: ReportPlan
    machine: dict[str, Any]
    allocator: str = ""
    runs: list[Run] = field(default_factory=list)
    rows: dict[str, list[Any]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)

    def markdown(self) -> str:
        return document(
            [
                f"# {self.plan.title}",
                escape(f"{_headline(self.machine, self.allocator)}; {describe(self.runs)}."),
                *(part for name in self.plan.order for part in self._part(name)),
            ]
        )

    def _part(self, name: str) -> Iterator[str]:
        if rows := self.rows.get(name):
            yield self.plan.parts[name].render(rows).strip()
            yield from (f"![{file}]({file})" for file in self._figures(name))
        if why := self.ended.get(name):
            yield f"The part on {name} ended early: {escape(why)}."

    def _figures(self, name: str) -> dict[str, str]:
        return self.plan.parts[name].figures(self.rows.get(name, []))

    def as_json(self) -> str:
        *earlier, seconds = [run.seconds for run in self.runs]
        whole = {"schema_version": self.plan.schema_version, **vars(self), "seconds": seconds, "earlier_seconds": sum(earlier)}
        del whole["plan"], whole["rows"]
        parts = ",\n".join(f"  {json.dumps(name)}: [{_lines(rows)}]" for name, rows in self.rows.items())
        return json.dumps(whole, indent=1, default=_fields).removesuffix("\n}") + f',\n "rows": {{\n{parts}\n }}\n}}\n'

    def write(self, folder: Path) -> None:
        files.write(folder / f"{self.plan.name}.md", self.markdown())
        files.write(folder / f"{self.plan.name}.json", self.as_json())
        for name in self.rows:
            for file, picture in self._figures(name).items():
                files.write(folder / file, picture)


def missing(row: Any) -> int:
    """How many figures a later run measures: those not reached, or for which memory did not suffice beside other processes."""
    text = repr(row)
    return text.count(NOT_REACHED) + text.count(OUT_OF_MEMORY)


def merge_rows(rows: Sequence[Any], others: Sequence[Any], where: str) -> list[Any]:
    """Both, one for each label: the row that lacks fewer figures, the former of two that lack as many.

    A row stays whole: its ratios were measured together. Raises ValueError where two that lack nothing differ.
    """
    found = {row.label: row for row in rows}
    for row in others:
        known = found.setdefault(row.label, row)
        if missing(row) < missing(known):
            found[row.label] = row
        elif row != known and not missing(row) and not missing(known):
            raise ValueError(f"{where}: {row.label} has other figures than in a report before it")
    return list(found.values())
