"""A column of the reports is declared in one place: every report has it once it is named there, and none once it is not."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from pytest_ecornn.contract import Case
from pytest_ecornn.reporting import junit, report_columns, standing, write_reports
from pytest_ecornn.reporting.console.rows_table import rows_table
from pytest_ecornn.reporting.report_columns import Entry, ReportColumn
from pytest_ecornn.results.rows import Row, Timing
from tests.helpers.reporting.outputs import printed
from tests.helpers.reporting_samples import CASES, row, sample_run, timing

ROWS = [row("torch_cpu", CASES[0], timing=timing(7_000.0, {})), row("blocked_cpu", CASES[0], timing=timing(3_500.0, {}))]


def step_us(entry: Entry) -> float | None:
    return entry.timing.time_us / Case.parse(entry.row.case).steps if entry.timing else None


STEP = ReportColumn(
    "step_us", step_us, text=lambda time_us: f"{time_us:.1f} us", html=lambda time_us: f"a step: {time_us:.1f} us",
    heading="Time of a step", title="step", description="Microseconds of one time step.",
)  # fmt: skip


def rendered(folder: Path) -> dict[str, str]:
    texts = {path.name: path.read_text() for path in write_reports(folder, sample_run(), ROWS)}
    table = printed(rows_table(ROWS, standing.unproven(ROWS)), 100)
    return {**texts, "terminal": table, "junit": str([junit.properties(one) for one in ROWS])}


def test_a_column_is_added_and_removed_where_columns_are_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rendered(tmp_path)
    for table in ("DETAILS", "HTML", "TERMINAL_TIMING", "BENCHMARK", "JUNIT_TIMING", "CSV_END"):
        monkeypatch.setattr(report_columns, table, (*getattr(report_columns, table), STEP))
    shown = {
        "report.md": "| Time of a step |", "report.html": "a step: 100.0 us", "terminal": "100.0 us",
        "junit": "'ecornn_step_us', '100'", "report.csv": ",step_us\n", "benchmark.json": '"step_us": 100.0',
    }  # fmt: skip
    added = rendered(tmp_path)
    assert {name: text in added[name] for name, text in shown.items()} == dict.fromkeys(shown, True)
    assert {name for name in before if added[name] != before[name]} == set(shown), "of others none changes"
    monkeypatch.undo()
    assert rendered(tmp_path) == before


def test_descriptions_are_of_fields_that_are_stored() -> None:
    assert set(report_columns.descriptions()) <= {field.name for kind in (Row, Timing) for field in fields(kind)}


def test_a_column_without_a_value_is_empty_for_people() -> None:
    untimed = Entry(row("torch_cpu", CASES[0]))
    for column in (*report_columns.DETAILS, *report_columns.GPU_DETAILS, *report_columns.HTML, *report_columns.TERMINAL_TIMING):
        assert column.in_markdown(untimed) == column.in_html(untimed) == column.in_terminal(untimed) == "", column.name


def test_no_file_has_two_columns_of_one_name() -> None:
    device_only = [f"replay_{column.name}" for column in report_columns.CSV_DEVICE_ONLY]
    names = [*(column.name for column in (*report_columns.CSV, *report_columns.CSV_END)), *device_only]
    assert sorted(set(names)) == sorted(names)
