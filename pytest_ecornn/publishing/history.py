"""The history of each row on one machine: its time in every run that timed it, and the runs at which it changed for good."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Any

from pytest_ecornn.publishing import change_points
from pytest_ecornn.publishing.change_points import Step
from pytest_ecornn.publishing.stored_runs import StoredRun
from pytest_ecornn.reporting import standing
from pytest_ecornn.system import machine

Key = tuple[str, str, str]  # implementation, case and column of times


@dataclass(frozen=True)
class Point:
    """A row's time in a run, with its interval, in microseconds. run: its number among the machine's."""

    run: int
    time_us: float
    low_us: float
    high_us: float


@dataclass(frozen=True)
class Series:
    """A row's points, oldest first. steps: at which its level changed; their runs are numbers of the machine's runs."""

    key: Key
    points: list[Point]
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class History:
    """The rows of one machine. exchanged: by run, how its machine differs from the one of the run before it.

    looked_at: places that were tested for a step, of all rows together.
    """

    series: list[Series]
    exchanged: dict[int, str]
    looked_at: int

    @property
    def changed(self) -> list[Series]:
        return [series for series in self.series if series.steps]


def of_runs(runs: Sequence[StoredRun]) -> History:
    """Returns the history of runs, oldest first. Times before and after an exchange are not compared."""
    points: dict[Key, list[Point]] = {}
    for number, run in enumerate(runs):
        for key, point in _points(number, run):
            points.setdefault(key, []).append(point)
    exchanged = dict(_exchanges(runs))
    parts = {key: list(_between(found, exchanged)) for key, found in points.items()}
    looked_at = sum(change_points.places(len(part)) for each in parts.values() for part in each)
    series = [Series(key, points[key], [step for part in parts[key] for step in _steps(part, looked_at)]) for key in points]
    return History(series, exchanged, looked_at)


def _points(number: int, run: StoredRun) -> Iterator[tuple[Key, Point]]:
    seen = set[Key]()
    for source in run.sources:
        for row in (row for row in source.rows if row.kind == "benchmark"):
            for column in standing.COLUMNS:
                key = row.implementation, row.case, column
                timing = None if key in seen else standing.is_publishable(row, source.unproven, column)
                values = (timing.time_us, timing.low_us, timing.high_us) if timing else ()
                if values and all(isfinite(value) and value > 0 for value in values) and values[1] <= values[2]:
                    seen.add(key)
                    yield key, Point(number, *values)


def _exchanges(runs: Sequence[StoredRun]) -> Iterator[tuple[int, str]]:
    """Yields each run on another kind of machine than the last one before it whose machine is known, and what differs."""
    known: dict[str, Any] = {}
    for number, run in enumerate(runs):
        if not run.fingerprint:
            continue
        forbidden, _ = machine.check_comparable(known, run.fingerprint, has_gpu=True) if known else ([], [])
        if forbidden:
            yield number, "; ".join(forbidden)
        known = run.fingerprint


def _between(points: Sequence[Point], exchanged: dict[int, str]) -> Iterator[list[Point]]:
    """Yields the points of each machine."""
    found: list[Point] = []
    for before, after in pairwise([None, *points]):
        assert after
        if before and any(before.run < run <= after.run for run in exchanged):
            yield found
            found = []
        found.append(after)
    yield found


def _steps(points: Sequence[Point], looked_at: int) -> Iterator[Step]:
    times = [point.time_us for point in points]
    for step in change_points.steps(times, [(point.low_us, point.high_us) for point in points], looked_at):
        yield Step(points[step.run].run, step.ratio, step.low, step.high)
