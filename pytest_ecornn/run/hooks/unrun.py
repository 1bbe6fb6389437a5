"""Reports what a run has not run: rows that were skipped from outside, and what was required or asked for but has no row."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest

from pytest_ecornn.results.rows import Row
from pytest_ecornn.run.items.items import CheckItem
from pytest_ecornn.run.suites import is_narrowed


def skipped_row(item: CheckItem, report: pytest.TestReport) -> Row:
    """The row of an item that a marker or a plugin skipped before it ran. Where it is required, the report fails too."""
    row = item.skipped_row(_reason(report))
    if row.status == "failed":
        report.outcome, report.longrepr = "failed", row.reason
        vars(report).pop("wasxfail", None)
    return row


def problems(required: Collection[str], rows: Collection[Row], config: pytest.Config) -> Iterator[str]:
    """Why a run that ended well has proven less than was asked for, a line each."""
    if config.getoption("--ecornn-shard"):
        return  # what has no row here may have one in another shard
    ran = {row.implementation for row in rows if row.kind != "control"}
    for name in required:
        if name not in ran:
            yield f"{name} is required, but no row of it ran"
    if not ran and not required and not is_narrowed(config):
        yield "no row ran: expected pytest to collect the shipped suites; see python_functions and --ignore"


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return report.wasxfail or "marked as xfail"
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ") or "skipped without a reason"
