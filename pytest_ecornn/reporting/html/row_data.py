"""The figures that a cell's details show, as columns of JSON: texts that rows share are stored once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import isfinite
from typing import Any

from pytest_ecornn.reporting import report_columns, standing
from pytest_ecornn.reporting.html.plots import rounded
from pytest_ecornn.reporting.report_columns import Entry
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import BaselineRatio, Row, Timing

_TIME_DIGITS = 6  # three are shown, and rounded once


class _Texts:
    """Texts by number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def all(self) -> list[str]:
        return list(self._numbers)


def columns(rows: Sequence[Row], unproven: Collection[standing.Key]) -> dict[str, Any]:
    """Returns `texts`, and a list for each figure, an entry a row: numbers of texts, and timings (null where there is none)."""
    texts = _Texts()
    return {
        "implementation": [texts.number(row.implementation) for row in rows],
        "case": [texts.number(row.case) for row in rows],
        "status": [texts.number(standing.status(row, unproven)) for row in rows],
        "error": [texts.number(report_columns.WORST_ERROR.in_html(Entry(row))) for row in rows],
        "notes": [texts.number(row.notes) for row in rows],
        "beside": [texts.number(row.beside) for row in rows],
        "timing": [_timing(row, "timing", unproven, texts) for row in rows],
        "replay": [_timing(row, "replay", unproven, texts) for row in rows],
        "texts": texts.all,
    }


def _timing(row: Row, column: str, unproven: Collection[standing.Key], texts: _Texts) -> list[Any] | None:
    """Returns time, low and high in us, speeds by baseline, further figures as text, and samples in us; or None.

    None where no time may be shown.
    """
    timing = standing.is_publishable(row, unproven, column)
    if timing is None:
        return None
    interval = [rounded(value, _TIME_DIGITS) for value in (timing.time_us, timing.low_us, timing.high_us)]
    ratios = [
        [
            texts.number(one.baseline),
            texts.number(_speed(one)),
            texts.number(standing.verdict(row, one, unproven)),
        ]
        for one in timing.against
    ]
    lines = [texts.number(line) for line in _figures(row, timing)]
    return [interval, ratios, lines, [rounded(time_us) for time_us in timing.samples_us]]


def _speed(one: BaselineRatio) -> str:
    """How many times as fast as the baseline, with its interval; the ratio of times where one of them is no such number."""
    if all(isfinite(value) and value > 0 for value in (one.ratio, one.low, one.high)):
        return f"{formatting.ratio_interval(1 / one.ratio, 1 / one.high, 1 / one.low)} times as fast"
    return f"time over its: {formatting.ratio_interval(one.ratio, one.low, one.high)}"


def _figures(row: Row, timing: Timing) -> list[str]:
    """Further figures, a line each."""
    return list(filter(None, (column.in_html(Entry(row, timing)) for column in report_columns.HTML)))
