"""benchmark.json: timed rows in pytest-benchmark's own storage format, which `pytest-benchmark compare FILE` reads.

Written because pytest-benchmark switches itself off under pytest-xdist. Rows whose times would not be published elsewhere
are left out, as pytest-benchmark leaves out tests that failed. Device-only times are groups of their own.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from math import isfinite
from typing import Any

import pytest_benchmark
from pytest_benchmark.stats import Stats

from pytest_ecornn.reporting import report_columns, standing
from pytest_ecornn.reporting.json_report import to_json
from pytest_ecornn.reporting.report_columns import Entry
from pytest_ecornn.results.formatting import one_line, ratio_interval
from pytest_ecornn.results.rows import Row, Timing
from pytest_ecornn.results.run_info import RunInfo

_Stats: Any = Stats  # it has no type hints
_TEST = "suites/test_benchmark.py::test_benchmark"


def render(run: RunInfo, rows: list[Row], unproven: Collection[standing.Key]) -> str:
    commit = {"id": str(run.machine.get("commit") or "unknown"), "dirty": bool(run.machine.get("dirty"))}
    machine = {"machine": "unknown", **run.fingerprint}
    publishable = [
        (row, column, timing)
        for row in standing.in_order(rows)
        for column in standing.COLUMNS
        if (timing := standing.is_publishable(row, unproven, column)) and _has_samples(timing)
    ]
    data = {
        "machine_info": run.machine.get("benchmark_machine_info", machine),
        "commit_info": run.machine.get("benchmark_commit_info", {**commit, "time": None, "project": "", "branch": "(unknown)"}),
        "benchmarks": [_benchmark(*one) for one in publishable],
        "datetime": run.started,
        "version": pytest_benchmark.__version__,
    }
    return json.dumps(to_json(data), indent=1, allow_nan=False) + "\n"


def _has_samples(timing: Timing) -> bool:
    return bool(timing.samples_us) and all(map(isfinite, timing.samples_us))


def _benchmark(row: Row, column: str, timing: Timing) -> dict[str, Any]:
    """One entry: grouped by case, named by implementation, in seconds."""
    name, case = one_line(row.implementation), one_line(row.case)
    label = "" if column == "timing" else f", {standing.COLUMNS[column]}"
    ratios = {one.baseline: f"{ratio_interval(one.ratio, one.low, one.high)} {one.verdict}" for one in timing.against}
    further = {column.name: column.value(Entry(row, timing)) for column in report_columns.BENCHMARK}
    return {
        "group": f"{case}{label}",
        "name": name,
        "fullname": f"{_TEST}[{name}-{case}{label}]",
        "params": {"implementation": name, "case": case},
        "param": f"{name}-{case}{label}",
        "extra_info": {"ratios": ratios, **further},
        "options": {"disable_gc": True, "timer": timing.clock, "warmup": True},
        "stats": _stats(timing),
    }


def _stats(timing: Timing) -> dict[str, Any]:
    stats = _Stats()
    for sample in timing.samples_us:
        stats.update(sample * 1e-6)
    return {**stats.as_dict(), "data": stats.data, "iterations": timing.calls_per_sample}
