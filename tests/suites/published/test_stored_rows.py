"""Rows of the published suites' stored reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ecornn.contract import Case
from pytest_ecornn.reporting.answer import answers
from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.suites.published import stored_rows

REPORTS = Path(__file__).parents[3] / "reports"


def test_a_suite_s_cells_are_rows_beside_their_baseline() -> None:
    path = REPORTS / "h100/deepbench.json"
    rows = {(row.implementation, row.case): row for row in stored_rows.load(path)}
    stored = json.loads(path.read_text())["rows"]["training"]
    measured = next(one for one in stored if one["cells"]["graph replay"]["persistent_gpu"]["time_us"])
    cell = measured["cells"]["graph replay"]["persistent_gpu"]
    row = rows["persistent_gpu", str(Case(**measured["case"]))]
    assert row.replay
    assert [row.replay.time_us, row.replay.low_us, row.replay.high_us] == cell["time_us"]
    (ratio,) = row.replay.against
    assert ratio.baseline == "cudnn"
    assert ratio.ratio == 1 / cell["over_it"]["cudnn"]["ratio"]
    assert (ratio.low, ratio.high) == (1 / cell["over_it"]["cudnn"]["high"], 1 / cell["over_it"]["cudnn"]["low"])
    assert ratio.time_us == measured["cells"]["graph replay"]["cudnn"]["time_us"][0]
    assert not [row for row in rows.values() if row.timing is None and row.replay is None]


def test_the_choice_of_auto_is_a_row_beside_torch() -> None:
    rows = stored_rows.load(REPORTS / "h100/selection.json")
    case = "lstm-T35-B32-H650-L2-bfloat16-cuda-training"
    (answer,) = (one for one in answers(rows, set()) if one.case == case and one.column == "replay")
    assert answer.fastest
    assert answer.fastest.name == "auto"
    assert answer.ratio
    assert answer.ratio.baseline == "torch.nn"
    assert answer.is_certain


@pytest.mark.parametrize("name", ["cpu/selection", "h100/host_time", "h100/language_model", "h200/ecornn", "h200/scan"])
def test_suites_that_time_other_things_have_no_rows(name: str) -> None:
    assert stored_rows.load(REPORTS / f"{name}.json") == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deepbench", "{}"),
        ("deepbench", "[" * 100_000),
        ("selection", "[]"),
        ("selection", '{"schema_version": 1, "machine": {}, "seed": 1, "count": 1, "rows": [{"problem": 3}]}'),
        ("selection_more", "x"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.json"
    path.write_text(text)
    with pytest.raises(ReportError) as refused:
        stored_rows.load(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", '{"machine": 3}', '{"machine": {"gpu": "x"}}'])
def test_a_machine_that_is_none_is_empty(text: str, tmp_path: Path) -> None:
    (tmp_path / "scan.json").write_text(text)
    assert stored_rows.fingerprint(stored_rows.load_json(tmp_path / "scan.json")) == {}
