"""A report in parts: each measured for a share of the time allowed, the whole written anew after every row that was measured.

What was measured so outlives a run that is cut short, and a part that fails says why while the others go on. A later run may
take over what an earlier one has measured. A report has two files: Markdown to read, and JSON from which it is continued.
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

from pytest_ecornn.reporting import files
from pytest_ecornn.reporting.markdown_syntax import document, escape
from pytest_ecornn.results.run_info import check_fingerprint
from pytest_ecornn.results.typed_json import field_types
from pytest_ecornn.suites.on_cuda import exit_code
from pytest_ecornn.suites.published import staleness
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED, OUT_OF_MEMORY, reason
from pytest_ecornn.system import machine, memory

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
    origin, members = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else from_json(next(kind for kind in members if kind is not types.NoneType), value)
    if origin is dict:
        return {key: from_json(members[1], element) for key, element in value.items()}
    if origin is list:
        return [from_json(members[0], element) for element in value]
    if origin is tuple:
        return tuple(from_json(kind, element) for kind, element in zip(members, value, strict=True))
    return value


@dataclass(frozen=True)
class Run:
    """The run of a process. parts: as asked. began: by time.time, 0 if unknown."""

    parts: list[str]
    seconds: float = 0.0
    began: float = 0.0


def of_report(content: dict[str, Any]) -> list[Run]:
    """Returns a report's runs from its JSON. Older reports have only the seconds of the last run and of those before it."""
    if "runs" in content:
        return list(from_json(list[Run], content["runs"]))
    before = [Run([], seconds)] if (seconds := content.get("earlier_seconds", 0)) else []
    return [*before, Run(list(content["rows"]), content["seconds"])]


@dataclass(frozen=True)
class ReportPart:
    """`measure` takes a deadline of time.monotonic and makes rows. share: of the time allowed, what is left of it goes on.

    row: their type. is_resumable: `measure` is given the rows of an earlier run and makes the others.
    """

    measure: Callable[..., Iterator[Any]]
    render: Callable[[Sequence[Any]], str]
    share: float
    row: type
    figures: Callable[[Sequence[Any]], dict[str, str]] = lambda rows: {}
    is_resumable: bool = False

    @classmethod
    def of(cls, module: Any, share: float, **others: Any) -> ReportPart:
        """The part that a module is: its `measure`, `render` and `Row`, and `figures` where it draws some."""
        figures = {"figures": module.figures} if hasattr(module, "figures") else {}
        return cls(module.measure, module.render, share, row=module.Row, **figures, **others)

    def rows(self, deadline: float, earlier: Sequence[Any]) -> Iterator[Any]:
        return self.measure(deadline, earlier) if self.is_resumable else self.measure(deadline)


@dataclass(frozen=True)
class ReportPlan:
    """name: of the report's files and the command. parts: in the order in which they run. order: in which they are read.

    device: that the command measures on unless it is told another.
    """

    name: str
    title: str
    schema_version: int
    parts: Mapping[str, ReportPart]
    order: Sequence[str]
    seconds: float
    device: str = "cuda"

    def run(self, folder: Path, seconds: float, names: Collection[str], resumed: Path | None = None) -> None:
        """The parts named, the report written after each row. resumed: the JSON file of an earlier run."""
        start = time.monotonic()
        report = Report(self, machine.fingerprint(Path.cwd()), memory.configure_malloc())
        earlier = self._load_previous(resumed, report) if resumed else {}
        measured = {name: [row for row in rows if not missing(row)] for name, rows in earlier.items()}
        report.rows = {name: list(rows) for name, rows in earlier.items()}
        report.runs.append(Run(list(names), began=time.time()))

        def write(name: str, done: str) -> None:
            report.runs[-1] = replace(report.runs[-1], seconds=time.monotonic() - start)
            report.write(folder)
            print(f"{report.runs[-1].seconds:4.0f} s  {name}: {done}", flush=True)

        for name, deadline in self.deadlines(start, seconds, names).items():
            report.ended[name], report.rows[name] = _UNFINISHED, []
            try:
                rows = self.parts[name].rows(deadline, measured.get(name, ()))
                _fill(report.rows[name], rows, measured.get(name, ()), partial(write, name))
                del report.ended[name]
            except Exception as error:
                report.ended[name] = reason(error)
                write(name, f"ended early: {report.ended[name]}")
            known, is_cut_short = {row.label for row in report.rows[name]}, name in report.ended
            due = [row for row in earlier.get(name, ()) if missing(row) and (row.label in known or is_cut_short)]
            report.rows[name] = _with_due(report.rows[name], due)  # what was measured of these stays
            report.write(folder)

    def _load_previous(self, path: Path, report: Report) -> dict[str, list[Any]]:
        """Rows of another run, by part, with what it has not reached. Raises ValueError for another version or kind of GPU.

        Another commit may go on after one that has all files alike that the report is about.
        """
        content = self.read(path)
        then, now = content["machine"], report.machine
        gpus = (list((machine["gpu"] or {}).get("names") or []) for machine in (then, now))
        pairs = [("GPU", *gpus), *((name, then[name], now[name]) for name in _SAME)]
        different = [f"{name} {before} and {after}" for name, before, after in pairs if before != after]
        if then["commit"] != now["commit"] and ((age := staleness.of_report(path)) is None or age.is_stale):
            different.append(f"commit {then['commit']} and {now['commit']}" + (f" ({age})" if age else ""))
        if different:
            raise ValueError(f"rows of {path} cannot stand in this report: {'; '.join(different)}")
        report.runs = of_report(content)
        return self.rows(path, content)

    def load(self, path: Path) -> Report:
        """A stored report. Raises ValueError as `read` and `rows` do."""
        content = self.read(path)
        rows = self.rows(path, content)
        return Report(self, content["machine"], content["allocator"], of_report(content), rows, content["ended"])

    def lacking(self, path: Path) -> list[str]:
        """The parts of a stored report of which a later run measures something. Raises ValueError as `load` does."""
        report = self.load(path)
        cut_short = {name for name, why in report.ended.items() if why == _UNFINISHED}
        cut_short |= {name for name, rows in report.rows.items() if any(map(missing, rows))}
        return [name for name in self.parts if name in cut_short or name not in report.rows]

    def read(self, path: Path) -> dict[str, Any]:
        """Returns a report's JSON. Raises ValueError, in one line, for a file that holds none."""
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            mistyped = [name for name in _NEEDED if not isinstance(content[name], _NEEDED[name])]
            check_fingerprint(content["machine"])
            headline(content["machine"])
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error
        except (ValueError, RecursionError, LookupError, TypeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise ValueError(f"{path}: expected the JSON of a report of {self.name} ({why})") from error
        if mistyped:
            raise ValueError(f"{path}: expected other types of {', '.join(mistyped)}")
        if (version := content["schema_version"]) != self.schema_version:
            raise ValueError(f"{path}: expected schema_version {self.schema_version}, got {version}")
        return content

    def rows(self, path: Path, content: dict[str, Any]) -> dict[str, list[Any]]:
        """Returns the rows of a report's JSON, by part. Raises ValueError where one is none, or of a part that is not read."""
        if unread := [name for name in content["rows"] if name not in self.parts]:
            raise ValueError(f"{path}: rows of {', '.join(unread)} are only written, never read")
        try:
            return {name: [from_json(self.parts[name].row, row) for row in rows] for name, rows in content["rows"].items()}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path}: expected rows of {self.name} ({type(error).__name__}: {error})") from error

    def deadlines(self, start: float, seconds: float, names: Collection[str]) -> dict[str, float]:
        """Returns each part's deadline, in running order; after it the part begins nothing more. Spare time is the next's."""
        chosen = {name: part.share for name, part in self.parts.items() if name in names}
        whole = sum(chosen.values())
        return {name: start + seconds * spent / whole for name, spent in zip(chosen, accumulate(chosen.values()), strict=True)}

    def main(self, text: str | None, arguments: Sequence[str] | None = None, *options: argparse.ArgumentParser) -> int:
        """The command, which takes these options as well. text: its first line says what it does. Returns the exit code."""
        parser = self._parser((text or "").partition("\n")[0], options)
        parsed = parser.parse_args(arguments)
        try:
            resumed = parsed.output / f"{self.name}.json" if parsed.resume is _OWN else parsed.resume
            measure = partial(self.run, parsed.output, parsed.seconds, parsed.parts or list(self.parts), resumed)
            if parsed.device == "cuda":
                return exit_code(parser.prog, measure)
            measure()
            return 0
        except (OSError, ValueError) as error:
            parser.error(str(error))

    def _parser(self, description: str, options: Sequence[argparse.ArgumentParser]) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=self.name, description=description, parents=options)
        parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where the report and its plots go")
        parser.add_argument("--seconds", type=float, default=self.seconds, help="after which nothing more is begun")
        parser.add_argument("--parts", nargs="+", choices=[*self.parts], help="all of them unless given")
        parser.set_defaults(resume=None, device=self.device)
        help_text = (
            "goes on after an earlier run of this report, of FOLDER or of a JSON file: it takes over the rows of parts not"
            " named, and of some parts what was measured"
        )
        parser.add_argument("--resume", type=Path, nargs="?", const=_OWN, metavar="FILE", help=help_text)
        return parser


def _fill(measured: list[Any], rows: Iterator[Any], earlier: Sequence[Any], write: Callable[[str], None]) -> None:
    """Written after each new row, but once for those of an earlier run and those that were not reached, which may be many."""
    late, known = 0, set(map(id, earlier))
    for row in rows:
        measured.append(row)
        if id(row) not in known and NOT_REACHED in repr(row):
            late += 1
        elif id(row) not in known:
            write(row.label)
    if late:
        write(f"{late} not reached")


def headline(fingerprint: dict[str, Any]) -> str:
    """The machine in a line. Raises LookupError or TypeError where a fingerprint lacks what it names."""
    threads = f"{fingerprint['cores']} cores, {fingerprint['threads']['torch']} threads"
    return f"{machine.gpu_summary(fingerprint)}; {threads}; {fingerprint.get('allocator', '')}"


def _fields(row: Any) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in fields(row)}


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
        several = f", in {len(self.runs)} runs" if len(self.runs) > 1 else ""
        made = f"made in {sum(run.seconds for run in self.runs):.0f} s{several}"
        head = escape(f"{headline({**self.machine, 'allocator': self.allocator})}; {made}.")
        return document([f"# {self.plan.title}", head, *(part for name in self.plan.order for part in self._part(name))])

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
        # A row a line: of hundreds that are written after each it takes little time, and shows what is new.
        lines = {name: ",".join(f"\n   {json.dumps(row, default=_fields)}" for row in rows) for name, rows in self.rows.items()}
        parts = ",\n".join(f"  {json.dumps(name)}: [{of_part}]" for name, of_part in lines.items())
        return json.dumps(whole, indent=1, default=_fields).removesuffix("\n}") + f',\n "rows": {{\n{parts}\n }}\n}}\n'

    def write(self, folder: Path) -> None:
        files.write(folder / f"{self.plan.name}.json", self.as_json())
        self.write_page(folder)

    def write_page(self, folder: Path) -> None:
        """Writes the Markdown and its pictures."""
        files.write(folder / f"{self.plan.name}.md", self.markdown())
        for name in self.rows:
            for file, picture in self._figures(name).items():
                files.write(folder / file, picture)


def missing(row: Any) -> int:
    """How many figures a later run measures: those not reached, or for which memory did not suffice beside other processes."""
    text = repr(row)
    return text.count(NOT_REACHED) + text.count(OUT_OF_MEMORY)


def _with_due(rows: Sequence[Any], due: Sequence[Any]) -> list[Any]:
    """Both, one for each label: the row that lacks fewer figures. A row stays whole: its ratios were measured together."""
    by_label = {row.label: row for row in rows}
    for row in due:
        if missing(row) < missing(by_label.setdefault(row.label, row)):
            by_label[row.label] = row
    return list(by_label.values())
