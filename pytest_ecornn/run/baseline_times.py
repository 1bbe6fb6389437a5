"""Baselines that took far longer beside a candidate than in their own row: then something else than the two was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_ecornn.results.formatting import duration
from pytest_ecornn.results.rows import Row, Timing

_TIMES_ITS_OWN = 2.0
_COLUMNS = ("timing", "replay")


def doubt(rows: Iterable[Row]) -> None:
    """Makes verdicts unclear, with the reason, whose baseline took twice what it took where it was the candidate itself."""
    rows = list(rows)
    for column in _COLUMNS:
        for row, timing in _timed(rows, column):
            for one in timing.against:
                own = [found.time_us for other, found in _timed(rows, column) if _is_own_row(other, row, one.baseline)]
                if own and one.time_us > _TIMES_ITS_OWN * min(own):
                    here, alone = duration(one.time_us), duration(min(own))
                    one.make_doubtful(f"{one.baseline} took {here} here and {alone} in its own row")


def _timed(rows: list[Row], column: str) -> Iterator[tuple[Row, Timing]]:
    return ((row, timing) for row in rows if (timing := getattr(row, column)) is not None)


def _is_own_row(other: Row, row: Row, baseline: str) -> bool:
    """Whether the baseline was the candidate there, on the same case."""
    return other is not row and (other.implementation, other.case) == (baseline, row.case)
