"""EcoRNN's choice at run time measured on this machine: what `auto` chose, what the choice cost, and what it lost.

`python -m pytest_ecornn.suites.published.selection --output FOLDER` writes FOLDER/selection.md and FOLDER/selection.json, anew
after every problem; --resume goes on after it. Source: EcoRNN, arXiv 1805.08899, figure 5.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

import torch

from pytest_ecornn.suites.published.common.item_rows import measure_rest
from pytest_ecornn.suites.published.common.parted import ReportPart, ReportPlan
from pytest_ecornn.suites.published.selection_parts import problems, selection_tables
from pytest_ecornn.suites.published.selection_parts.problems import SelectionProblem
from pytest_ecornn.suites.published.selection_parts.selection_tables import SelectionRow

SETS = ("ecornn", "deepbench", "drawn", "scans")
DEFAULT_SETS = SETS[:3]
FAMILY_CONFIDENCE = 0.99  # that all intervals of a set hold at once
_SEED, _COUNT, _SECONDS = 1, 100, 500.0
_MIN_RATIO, _MIN_OF_BEST = 0.97, 0.95  # estimates below look slow
_AGAIN = 4  # rounds of the second measurement over those of the first


def selected(sets: Sequence[str], seed: int = _SEED, count: int = _COUNT) -> list[SelectionProblem]:
    """All problems of the sets, each once."""
    makers: dict[str, Callable[[], Iterator[SelectionProblem]]] = {
        "ecornn": problems.ecornn, "deepbench": problems.deepbench, "drawn": lambda: problems.drawn(seed, count),
        "scans": lambda: problems.drawn_scans(seed, count),
    }  # fmt: skip
    return list(dict.fromkeys(chain.from_iterable(makers[name]() for name in sets)))


def measure(
    deadline: float, earlier: Sequence[SelectionRow], todo: Sequence[SelectionProblem], device: str
) -> Iterator[SelectionRow]:
    """Earlier rows, then one for each other problem; what looks slow is measured once more, by more rounds."""
    os.environ.pop("ECORNN_AUTO", None)
    confidence = 1 - (1 - FAMILY_CONFIDENCE) / max(1, 2 * len(todo))

    def row(problem: SelectionProblem) -> SelectionRow:
        first = selection_tables.measure(problem, torch.device(device), confidence)
        columns = [column for column in (first.called, first.replayed) if column]
        if all(column.over_baseline.ratio >= _MIN_RATIO and column.over_best.ratio >= _MIN_OF_BEST for column in columns):
            return first
        return selection_tables.measure(problem, torch.device(device), confidence, _AGAIN * selection_tables.ROUNDS)

    return measure_rest(todo, earlier, deadline, row, lambda problem, why: SelectionRow(problem, refusals={"all": why}))


def make_plan(todo: Sequence[SelectionProblem], device: str = "cuda") -> ReportPlan:
    """The report on these problems."""
    measured = partial(measure, todo=todo, device=device)
    parts = {"problems": ReportPart(measured, selection_tables.render, 1.0, row=SelectionRow, is_resumable=True)}
    return ReportPlan("selection", "What auto chooses on this machine", 1, parts, ("problems",), _SECONDS)


PLAN = make_plan(selected(DEFAULT_SETS))


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="selection", add_help=False, allow_abbrev=False)
    add = options.add_argument
    add("--device", default="cuda", help="cpu, cuda or cuda:N")
    add("--sets", nargs="+", choices=SETS, default=list(DEFAULT_SETS), help="which problems")
    add("--seed", type=int, default=_SEED, help="of the drawn problems")
    add("--count", type=int, default=_COUNT, help="number of drawn problems")
    add("--compile-only", metavar="K/N", help="run each backend of every N-th problem once, from the K-th, and time nothing")
    parsed = options.parse_known_args(arguments)[0]
    todo = selected(parsed.sets, parsed.seed, parsed.count)
    if not parsed.compile_only:
        return make_plan(todo, parsed.device).main(__doc__, arguments, options)
    first, step = map(int, parsed.compile_only.split("/"))
    deadline = time.monotonic() + _SECONDS
    for problem in todo[first::step]:
        if time.monotonic() < deadline:
            selection_tables.run_once(problem, torch.device(parsed.device))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
