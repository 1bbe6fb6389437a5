"""The JSON Schema of report.json: what is written and stored is valid, and what the loader refuses is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import pytest_ecornn
from pytest_ecornn.reporting import write_reports
from pytest_ecornn.reporting.stored.schema import report_schema
from pytest_ecornn.results import rows
from tests.helpers.reporting_samples import sample_rows, sample_run

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def validator() -> Any:
    jsonschema.Draft202012Validator.check_schema(report_schema())
    return jsonschema.Draft202012Validator(report_schema())


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    write_reports(tmp_path, sample_run(), sample_rows())
    return json.loads((tmp_path / "report.json").read_text())


def test_written_and_stored_reports_are_valid(validator: Any, stored: Any) -> None:
    for report in (stored, *(json.loads(path.read_text()) for path in (ROOT / "reports").glob("*/report.json"))):
        validator.validate(report)


def first_timing(report: dict[str, Any]) -> Any:
    return next(row["timing"] for row in report["rows"] if row["timing"] and row["timing"]["against"])


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another version": lambda report: report.update(schema_version=2),
    "no run": lambda report: report.pop("run"),
    "a run without a start": lambda report: report["run"].pop("started"),
    "an unknown field": lambda report: report["rows"][0].update(colour="red"),
    "another status": lambda report: report["rows"][0].update(status="great"),
    "another verdict": lambda report: first_timing(report)["against"][0].update(verdict="great"),
    "a run without settings": lambda report: report["run"].pop("settings"),
    "a GPU that is a text": lambda report: report["run"]["machine"].update(gpu="H100"),
    "a sensor that is a text": lambda report: first_timing(report).update(sensors={"sm_mhz": "fast"}),
    "a sensor of two numbers": lambda report: first_timing(report).update(sensors={"power_w": [1.0, 2.0]}),
    "rounds that are a text": lambda report: first_timing(report).update(sensors={"repeated_rounds": "<b>"}),
    "text for a number": lambda report: report["rows"][0].update(seconds="long"),
    "a row that is none": lambda report: report["rows"].append(3),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_not_valid_is_not_loaded(
    change: Callable[[dict[str, Any]], object], validator: Any, stored: Any, tmp_path: Path
) -> None:
    change(stored)
    assert not validator.is_valid(stored)
    (tmp_path / "changed.json").write_text(json.dumps(stored))
    with pytest.raises(pytest_ecornn.ReportError):
        pytest_ecornn.load_report(tmp_path / "changed.json")


def test_words_are_of_fields_that_exist() -> None:
    for kind, name in rows.WORDS:
        assert name in [one.name for one in fields(getattr(rows, kind))]


def test_a_report_is_loaded_from_its_folder_or_file(tmp_path: Path) -> None:
    write_reports(tmp_path, sample_run(), sample_rows())
    report = pytest_ecornn.load_report(str(tmp_path))
    assert report == pytest_ecornn.load_report(tmp_path / "report.json")
    assert report.run.started == sample_run().started
    assert [row.key for row in report.rows] == [row.key for row in sample_rows()]
    with pytest.raises(pytest_ecornn.ReportError, match=r"none\.json: cannot be read \(No such file or directory\)"):
        pytest_ecornn.load_report(tmp_path / "none.json")
