"""report.csv: a line for each row and baseline, for spreadsheets and data frames. Samples are in report.json only."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from pytest_ecornn.reporting import report_columns, standing
from pytest_ecornn.reporting.report_columns import Entry, ReportColumn
from pytest_ecornn.results.formatting import printable
from pytest_ecornn.results.rows import BaselineRatio, Row

# Also the full-width forms of = + - @, which some spreadsheets read alike.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def render(rows: list[Row], unproven: Collection[standing.Key]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    device_only = (f"replay_{column.name}" for column in report_columns.CSV_DEVICE_ONLY)
    writer.writerow([*_names(report_columns.CSV), *device_only, *_names(report_columns.CSV_END)])
    for row in _timed_first(standing.in_order(rows)):
        compared: list[BaselineRatio | None] = list(row.timing.against) if row.timing is not None else []
        for ratio in compared or [None]:
            writer.writerow(_cell(value) for value in _line(row, ratio, unproven))
    return out.getvalue()


def _names(columns: Iterable[ReportColumn]) -> Iterator[str]:
    return (column.name for column in columns)


def _timed_first(rows: list[Row]) -> list[Row]:
    """Rows with a time, then those that were proven or not, then what was not run."""
    return sorted(rows, key=lambda row: (row.timing is None, row.status == "skipped"))


def _line(row: Row, ratio: BaselineRatio | None, unproven: Collection[standing.Key]) -> Iterator[Any]:
    """The values of all columns, the ratio being to one of the baselines."""
    as_called = Entry(row, row.timing, ratio, unproven)
    yield from (column.value(as_called) for column in report_columns.CSV)
    device_only = Entry(row, row.replay, standing.ratio_to(row, ratio.baseline, "replay") if ratio else None, unproven)
    yield from (column.value(device_only) for column in report_columns.CSV_DEVICE_ONLY)
    yield from (column.value(as_called) for column in report_columns.CSV_END)


def _cell(value: Any) -> Any:
    """Numbers as they are; text that a spreadsheet would run as a formula behind an apostrophe."""
    if not isinstance(value, str):
        return value
    return ("'" if value.startswith(_FORMULA_STARTS) else "") + printable(value)
