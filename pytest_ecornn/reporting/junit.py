"""The figures of a row as properties of its test in JUnit XML."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_ecornn.reporting import report_columns
from pytest_ecornn.reporting.report_columns import Entry
from pytest_ecornn.results.rows import Row


def properties(row: Row) -> list[tuple[str, str]]:
    """Names and values. Ratios to baselines follow the figures of their timing."""
    return [(f"ecornn_{name}", f"{value:.6g}" if isinstance(value, float) else str(value)) for name, value in _figures(row)]


def _figures(row: Row) -> Iterator[tuple[str, Any]]:
    of_row = ((column.name, column.value(Entry(row))) for column in report_columns.JUNIT)
    yield from ((name, value) for name, value in of_row if value is not None)
    if row.timing is not None:
        yield from ((column.name, column.value(Entry(row, row.timing))) for column in report_columns.JUNIT_AS_CALLED)
    for prefix, timing in (("", row.timing), ("replay_", row.replay)):
        if timing is not None:
            yield from ((f"{prefix}{column.name}", column.value(Entry(row, timing))) for column in report_columns.JUNIT_TIMING)
            for ratio in timing.against:
                interval = f"{ratio.ratio:.4g} [{ratio.low:.4g}, {ratio.high:.4g}]"
                yield f"{prefix}ratio_to_{ratio.baseline}", f"{interval} {ratio.verdict}"
