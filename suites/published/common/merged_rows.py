"""Rows of several runs of one report: which of two of the same case stays, and what a later run measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_ecornn.suites.published.common.optional import NOT_REACHED, OUT_OF_MEMORY


def is_late(row: Any) -> bool:
    return NOT_REACHED in repr(row)


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
