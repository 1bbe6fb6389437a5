"""Rows that failed, those of one reason together, as report.md and report.html show them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_ecornn.reporting.terminal import by_reason
from pytest_ecornn.results.rows import Row

_MAX_CASES = 5  # that are named of one failure


@dataclass(frozen=True)
class FailureGroup:
    """One reason of an implementation. shown: some of its rows. more: the number of the others."""

    implementation: str
    shown: list[Row]
    more: int
    reason: str


def of_rows(rows: Iterable[Row]) -> list[FailureGroup]:
    """Each reason once, in the order of the rows."""
    return [
        FailureGroup(
            group[0].implementation,
            group[:_MAX_CASES],
            max(0, len(group) - _MAX_CASES),
            group[0].reason or "no reason was given",
        )
        for group in by_reason(row for row in rows if row.status == "failed")
    ]
