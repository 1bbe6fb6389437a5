"""Rows of a run's report whose intervals have no width."""

from __future__ import annotations

from pytest_ecornn.contract import Case
from pytest_ecornn.results.rows import Row, Timing
from tests.helpers import reporting_samples


def timing(time_us: float, **baselines_us: float) -> Timing:
    exact = reporting_samples.timing(time_us, baselines_us)
    exact.low_us = exact.high_us = time_us
    for one in exact.against:
        one.low = one.high = one.ratio
    return exact


def report_row(name: str, case: Case, reason: str = "", **columns: Timing | None) -> Row:
    """Timed where `columns` (timing, replay) are given; else skipped for the reason."""
    return reporting_samples.row(name, str(case), status="skipped" if reason else "passed", reason=reason, **columns)
