"""Rows of a run's report with made-up times."""

from __future__ import annotations

from pytest_ecornn.contract import Case
from pytest_ecornn.results.rows import BaselineRatio, Row, Timing

_MISSING = float("nan")


def timing(time_us: float, **baselines_us: float) -> Timing:
    """Intervals of no width."""
    against = [
        BaselineRatio(name, other_us, *[time_us / other_us] * 3, "faster" if time_us < other_us else "slower")
        for name, other_us in baselines_us.items()
    ]
    return Timing(
        *[time_us] * 3, samples_us=[], calls_per_sample=1, clock="", against=against, build_ms=_MISSING, peak_bytes=None,
        bytes=0, operations=0, gb_per_s=_MISSING, gflop_per_s=_MISSING, floor_us=_MISSING, floor_share=_MISSING,
    )  # fmt: skip


def report_row(name: str, case: Case, reason: str = "", **columns: Timing | None) -> Row:
    """Timed where `columns` (timing, replay) are given; else skipped for the reason."""
    status = "skipped" if reason else "passed"
    return Row("benchmark", name, str(case), case.cell, case.dtype, case.device, case.mode, status, reason, **columns)  # type: ignore[arg-type]
