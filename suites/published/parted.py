"""A report in parts: each measured for a share of the time allowed, the whole written anew after every row.

What was measured so outlives a run that is cut short, and a part that fails says why while the others go on. A later run may
take over what an earlier one has measured.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from pytest_ecornn import machine, memory
from pytest_ecornn.reporting.markdown_syntax import document, escape
from pytest_ecornn.suites.on_cuda import exit_code
from pytest_ecornn.suites.published.optional import LATE, reason
from pytest_ecornn.suites.published.rebuilt import rebuilt

Item = TypeVar("Item")
Row = TypeVar("Row")
_SAME = ("commit", "dirty", "version", "packages")  # of two machines, for rows of one to stand in the other's report


def each(
    items: Iterable[Item], deadline: float, row: Callable[[Item], Row], without: Callable[[Item, str], Row]
) -> Iterator[Row]:
    """A row for each; of those that begin after `deadline` (of time.monotonic), or fail, one `without` figures, with why."""
    for item in items:
        if time.monotonic() >= deadline:
            yield without(item, LATE)
            continue
        try:
            yield row(item)
        except Exception as error:  # one row's failure must not end the others' measurement
            yield without(item, reason(error))
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class Part:
    """`measure` takes a deadline of time.monotonic and makes rows. share: of the time allowed, what is left of it goes on.

    row: their type, where a later run may take them over. goes_on: then `measure` is given those rows and makes the others.
    """

    measure: Callable[..., Iterator[Any]]
    render: Callable[[Sequence[Any]], str]
    share: float
    figures: Callable[[Sequence[Any]], dict[str, str]] = lambda rows: {}
    row: type | None = None
    goes_on: bool = False

    def rows(self, deadline: float, earlier: Sequence[Any]) -> Iterator[Any]:
        return self.measure(deadline, earlier) if self.goes_on and earlier else self.measure(deadline)


@dataclass(frozen=True)
class Plan:
    """name: of the report's files and the command. parts: in the order in which they run. order: in which they are read."""

    name: str
    title: str
    schema_version: int
    parts: Mapping[str, Part]
    order: Sequence[str]
    seconds: float

    def run(self, folder: Path, seconds: float, names: Sequence[str], resumed: Path | None = None) -> None:
        """The parts named, the report written after each row. resumed: the JSON file of an earlier run."""
        start = time.monotonic()
        report = Report(self, machine.fingerprint(Path.cwd()), memory.fix_allocator())
        earlier = self._taken_over(resumed, report) if resumed else {}
        report.rows = {name: rows for name, rows in earlier.items() if name not in names}

        def write(done: str) -> None:
            report.seconds = time.monotonic() - start
            report.write(folder)
            print(f"{report.seconds:4.0f} s  {done}", flush=True)

        for name, deadline in self.deadlines(start, seconds, names).items():
            try:
                for row in self.parts[name].rows(deadline, earlier.get(name, ())):
                    report.rows.setdefault(name, []).append(row)
                    write(f"{name}: {row.label}")
            except Exception as error:
                report.ended[name] = reason(error)
                write(f"{name} ended early: {report.ended[name]}")

    def _taken_over(self, path: Path, report: Report) -> dict[str, list[Any]]:
        """What another run has measured, by part. Raises ValueError where it was of another version or kind of GPU."""
        found = json.loads(path.read_text())
        one, other = found["machine"], report.machine
        pairs = [("schema_version", found["schema_version"], self.schema_version), ("GPU", _gpus(one), _gpus(other))]
        pairs += [(name, one[name], other[name]) for name in _SAME]
        if different := [f"{name} {then} and {now}" for name, then, now in pairs if then != now]:
            raise ValueError(f"rows of {path} cannot stand in this report: {'; '.join(different)}")
        report.earlier_seconds = found["seconds"] + found["earlier_seconds"]
        return {
            name: [rebuilt(part.row, row) for row in found["rows"].get(name, []) if LATE not in json.dumps(row)]
            for name, part in self.parts.items()
            if part.row
        }

    def deadlines(self, start: float, seconds: float, names: Sequence[str]) -> dict[str, float]:
        """By part, in the order in which they run, when it has to begin nothing more: what one leaves is the next one's."""
        chosen = {name: part.share for name, part in self.parts.items() if name in names}
        found, spent = {}, 0.0
        for name, share in chosen.items():
            spent += share
            found[name] = start + seconds * spent / sum(chosen.values())
        return found

    def main(self, description: str, arguments: Sequence[str] | None) -> int:
        """The command. Returns its exit code."""
        parser = argparse.ArgumentParser(prog=self.name, description=description)
        parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where the report and its plots go")
        parser.add_argument("--seconds", type=float, default=self.seconds, help="after which nothing more is begun")
        names = list(self.parts)
        parser.add_argument("--parts", nargs="+", choices=names, default=names, help="all of them unless given")
        if any(part.row for part in self.parts.values()):
            told = "a JSON file of this report, whose rows are taken over: parts not named, and of some parts what was measured"
            parser.add_argument("--resume", type=Path, metavar="FILE", help=told)
        given = parser.parse_args(arguments)
        resumed = getattr(given, "resume", None)
        try:
            return exit_code(parser.prog, lambda: self.run(given.output, given.seconds, given.parts, resumed))
        except ValueError as error:
            parser.error(str(error))


def _gpus(found: dict[str, Any]) -> list[str]:
    return list((found["gpu"] or {}).get("names") or [])


@dataclass
class Report:
    """What was measured so far: rows by part. ended: why a part has no more of them than it has."""

    plan: Plan
    machine: dict[str, Any]
    allocator: str = ""
    seconds: float = 0.0
    earlier_seconds: float = 0.0  # of runs whose rows were taken over
    rows: dict[str, list[Any]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)

    def markdown(self) -> str:
        threads = f"{self.machine['cores']} cores, {self.machine['threads']['torch']} threads; {self.allocator}"
        earlier = f", with rows of {self.earlier_seconds:.0f} s before" if self.earlier_seconds else ""
        return document(
            [
                f"# {self.plan.title}",
                escape(f"{machine.gpu_line(self.machine)}; {threads}; made in {self.seconds:.0f} s{earlier}."),
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
        rows = {name: [asdict(row) for row in rows] for name, rows in self.rows.items()}
        whole = {"schema_version": self.plan.schema_version, **vars(self), "rows": rows}
        del whole["plan"]
        return json.dumps(whole, indent=1) + "\n"

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.plan.name}.md").write_text(self.markdown())
        (folder / f"{self.plan.name}.json").write_text(self.as_json())
        for name in self.rows:
            for file, picture in self._figures(name).items():
                (folder / file).write_text(picture)
