"""Rows that failed, those of one reason together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_ecornn.reporting.terminal import by_reason
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import Row

_MAX_CASES = 5  # that are named of one failure


@dataclass(frozen=True)
class FailureGroup:
    """One reason of an implementation. cases: some of those that it is of. more: the number of the others."""

    implementation: str
    cases: list[str]
    more: int
    reason: str


def of_rows(rows: Iterable[Row]) -> list[FailureGroup]:
    """Each reason once, in the order of the rows."""
    found = by_reason(row for row in rows if row.status == "failed")
    return [
        FailureGroup(
            one[0].implementation,
            [f"{row.case} ({row.kind})" for row in one[:_MAX_CASES]],
            max(0, len(one) - _MAX_CASES),
            formatting.printable(one[0].reason or "no reason was given"),
        )
        for one in found
    ]
