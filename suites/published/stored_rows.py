"""Rows of a stored report of what auto chose, as a run's own report has them: for tables that read both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_ecornn.contract import Case
from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.results.rows import BaselineRatio, Row, Timing
from pytest_ecornn.results.run_info import check_fingerprint
from pytest_ecornn.results.statistics import EQUIVALENCE_MARGINS, Ratio, verdict
from pytest_ecornn.suites.published import stored
from pytest_ecornn.suites.published.common.bars import Times
from pytest_ecornn.suites.published.selection_parts.problems import SelectionProblem
from pytest_ecornn.suites.published.selection_parts.selection_tables import Column

_SELECTION = "selection"  # the name of its files begins so
_BASELINE, _AUTO = "torch.nn", "auto"


def load(path: Path) -> list[Row]:
    """Returns the rows of what auto chose; none of suites that time other things.

    Raises ReportError, in one line, for a file that holds no such report.
    """
    try:
        return list(_of_selection(path)) if path.stem.startswith(_SELECTION) else []
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ReportError(f"{path}: expected the report of a suite ({type(error).__name__}: {error})") from error


def load_json(path: Path) -> dict[str, Any]:
    """Returns the object of a JSON file; an empty one where it holds none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def fingerprint(report: dict[str, Any]) -> dict[str, Any]:
    """Returns the machine of a suite's report; empty where it has none of the shape that a run's report has."""
    machine = report.get("machine")
    try:
        check_fingerprint(machine)
    except ValueError:
        return {}
    return dict(machine or {})


def _of_selection(path: Path) -> Iterator[Row]:
    """Yields torch.nn and auto, whose ratio alone has an interval, of each problem."""
    plan = stored.plan(_SELECTION)
    for row in plan.rows(path, plan.read(path))["problems"]:
        columns = {"timing": row.called, "replay": row.replayed}
        measured = {name: column for name, column in columns.items() if column and {_BASELINE, _AUTO} <= {*column.times_us}}
        if measured:
            yield from _of_columns(_case(row.problem, "cuda" if row.replayed else "cpu"), measured)


def _of_columns(case: Case, columns: Mapping[str, Column]) -> Iterator[Row]:
    for name in (_BASELINE, _AUTO):
        row = Row("benchmark", name, str(case), case.cell, case.dtype, case.device, case.mode, "passed")
        for field, column in columns.items():
            setattr(row, field, _timing(column.times_us[name], [_against(column, field)] if name == _AUTO else []))
        row.notes = f"runs {next(iter(columns.values())).choice}" if name == _AUTO else ""
        yield row


def _case(problem: SelectionProblem, device: str) -> Case:
    return Case(
        cell=problem.cell, steps=problem.steps, batch=problem.batch, hidden_size=problem.hidden_size,
        input_size=problem.input_size, layers=problem.layers, bidirectional=problem.directions == 2, dtype=problem.dtype,
        device=device, mode=problem.mode, precision="tf32" if problem.precision == "tf32" else "ieee",
    )  # fmt: skip


def _timing(times: Times, against: list[BaselineRatio]) -> Timing:
    """Returns a timing without the figures that a suite does not have."""
    missing = float("nan")
    return Timing(
        *times, samples_us=[], calls_per_sample=0, clock="", against=against, build_ms=missing, peak_bytes=None, bytes=0,
        operations=0, gb_per_s=missing, gflop_per_s=missing, floor_us=missing, floor_share=missing,
    )  # fmt: skip


def _against(column: Column, field: str) -> BaselineRatio:
    """The ratio of auto's time to the baseline's."""
    over_auto, time_us = column.over_baseline, column.times_us[_BASELINE][0]
    ratio = Ratio(1 / over_auto.ratio, 1 / over_auto.high, 1 / over_auto.low)
    return BaselineRatio(_BASELINE, time_us, ratio.ratio, ratio.low, ratio.high, verdict(ratio, EQUIVALENCE_MARGINS[field]))
