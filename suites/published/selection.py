"""EcoRNN's choice at run time measured on this machine: what `auto` chose, what the choice cost, and what it lost.

`python -m pytest_ecornn.suites.published.selection --output FOLDER` writes FOLDER/selection.md and FOLDER/selection.json, anew
after every problem, so that what was measured outlives a run that is cut short. With `--resume` a further run measures what
the report lacks. Source: EcoRNN, arXiv 1805.08899, figure 5.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from pytest_ecornn.suites.published.common.parted import check_resumable, read_report, write_report
from pytest_ecornn.suites.published.selection_parts import problems, selection_tables
from pytest_ecornn.suites.published.selection_parts.problems import SelectionProblem
from pytest_ecornn.suites.published.selection_parts.selection_tables import SelectionRow
from pytest_ecornn.system import machine
from pytest_ecornn.system.error_line import error_line

SCHEMA_VERSION = 1
SETS = ("ecornn", "deepbench", "drawn", "scans")
DEFAULT_SETS = ("ecornn", "deepbench", "drawn")
FAMILY_CONFIDENCE = 0.99  # that all intervals of a set hold at once
_MIN_RATIO, _MIN_OF_BEST = 0.97, 0.95
_AGAIN = 4  # rounds of the second measurement over those of the first


@dataclass
class Report:
    """The rows measured so far, on one machine."""

    machine: dict[str, Any]
    seed: int
    count: int
    seconds: float = 0.0
    rows: list[SelectionRow] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        write_report(self, selection_tables.render(self), folder, "selection", SCHEMA_VERSION)

    @classmethod
    def read(cls, path: Path) -> Report:
        return read_report(cls, path, SCHEMA_VERSION)


def selected(sets: Sequence[str], seed: int, count: int) -> list[SelectionProblem]:
    """All problems of the sets."""
    makers: dict[str, Callable[[], Iterator[SelectionProblem]]] = {
        "ecornn": problems.ecornn, "deepbench": problems.deepbench, "drawn": lambda: problems.drawn(seed, count),
        "scans": lambda: problems.drawn_scans(seed, count),
    }  # fmt: skip
    return list(chain.from_iterable(makers[name]() for name in sets))


def measure(report: Report, todo: Sequence[SelectionProblem], device: torch.device, deadline: float, folder: Path) -> None:
    """Measures problems until the deadline, then once more those that look slow."""
    start, before_s, confidence = time.monotonic(), report.seconds, 1 - (1 - FAMILY_CONFIDENCE) / max(1, 2 * len(todo))
    report.rows = [row for row in report.rows if row.called is not None]
    done = {row.problem for row in report.rows}

    def write(line: str) -> None:
        report.seconds = before_s + time.monotonic() - start
        report.write(folder)
        print(f"{time.monotonic() - start:4.0f} s  {line}", flush=True)

    for problem in todo:
        if problem in done:
            continue
        if time.monotonic() > deadline:
            break
        report.rows.append(_row(problem, device, confidence))
        write(f"{problem} {problem.mode}: {selection_tables.in_a_line(report.rows[-1])}")
    for number, row in enumerate(report.rows):
        if looks_slow(row) and time.monotonic() < deadline:
            again = _row(row.problem, device, confidence, _AGAIN * selection_tables.ROUNDS)
            report.rows[number] = again
            write(f"once more {row.problem} {row.problem.mode}: {selection_tables.in_a_line(again)}")


def looks_slow(row: SelectionRow) -> bool:
    """Whether a ratio's estimate is below a bar."""
    columns = [column for column in (row.called, row.replayed) if column is not None]
    return any(column.over_baseline.ratio < _MIN_RATIO or column.over_best.ratio < _MIN_OF_BEST for column in columns)


def _row(
    problem: SelectionProblem, device: torch.device, confidence: float, rounds: int = selection_tables.ROUNDS
) -> SelectionRow:
    try:
        return selection_tables.measure(problem, device, confidence, rounds)
    except Exception as error:  # one problem's failure must not end the others' measurement
        return SelectionRow(problem, refusals={"all": error_line(error, 200)})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="selection", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--output", type=Path, required=True, metavar="FOLDER", help="where selection.md and selection.json go")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu, cuda or cuda:N")
    add("--sets", nargs="+", choices=SETS, default=list(DEFAULT_SETS), help="which problems")
    add("--seed", type=int, default=1, help="of the drawn problems")
    add("--count", type=int, default=100, help="number of drawn problems")
    add("--seconds", type=float, default=500.0, help="after which no further problem is begun")
    add("--compile-only", metavar="K/N", help="run each backend of every N-th problem once, from the K-th, and time nothing")
    add("--resume", dest="goes_on", action="store_true", help="keep the rows of the report in FOLDER")
    given = parser.parse_args(arguments)
    device, todo = torch.device(given.device), selected(given.sets, given.seed, given.count)
    if given.compile_only:
        first, step = map(int, given.compile_only.split("/"))
        deadline = time.monotonic() + given.seconds
        for problem in todo[first::step]:
            if time.monotonic() < deadline:
                selection_tables.run_once(problem, device)
        return 0
    path = given.output / "selection.json"
    report = Report(machine.fingerprint(Path.cwd()), given.seed, given.count)
    if given.goes_on and path.exists():
        before = Report.read(path)
        try:
            check_resumable(path, before.machine, report.machine)
        except ValueError as error:
            parser.error(str(error))
        if (before.seed, before.count) != (report.seed, report.count):
            parser.error(f"{path}: expected a report of seed {report.seed} and {report.count} drawn problems")
        report.rows, report.seconds = before.rows, before.seconds
    os.environ.pop("ECORNN_AUTO", None)
    measure(report, todo, device, time.monotonic() + given.seconds, given.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
