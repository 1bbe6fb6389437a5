"""Published suites and their stored reports: parts make the rows that are stored; these are rendered, joined and read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.__main__ import main
from pytest_ecornn.contract import Case
from pytest_ecornn.reporting.answer import answers
from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.results.shard import Shard
from pytest_ecornn.suites.published import front_chart, stored, stored_rows
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED
from pytest_ecornn.suites.published.common.parted import from_json

ROOT = Path(__file__).parents[3]
COMMITTED = ROOT / "reports"
REPORTS = [path for path in stored.reports(COMMITTED) if path.stem in stored.NAMES]
PARTS = {f"{name}-{part}": section for name in stored.NAMES for part, section in stored.plan(name).parts.items()}
del PARTS["sparse-capacity"]  # which asks a device for its sizes
MEASURED = {name for name in PARTS if name.rpartition("-")[0] in {path.stem for path in REPORTS}}


# Parts.


@cache
def rows_of_report(name: str) -> Mapping[str, list[Any]]:
    files = (ROOT / folder / f"{name}.json" for folder in front_chart.FOLDERS)
    return stored.joined(name, [next(filter(Path.exists, files))]).rows


@pytest.mark.parametrize("name", PARTS)
def test_what_begins_after_the_deadline_says_so(name: str) -> None:
    section = PARTS[name]
    rows = list(section.rows(0.0, [], section.groups, None))
    assert all(NOT_REACHED in repr(row) for row in rows)
    assert re.search(rf"{NOT_REACHED}|\b0 of (the 0|\d+) cases", section.render(rows))
    assert len({row.label for row in rows}) == len(rows) > 0
    if section.row:
        assert [from_json(section.row, json.loads(json.dumps(asdict(row)))) for row in rows] == rows


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_what_is_measured_is_what_the_stored_report_has(name: str) -> None:
    suite, _, part = name.rpartition("-")
    labels = {row.label for row in PARTS[name].rows(0.0, [], PARTS[name].groups, None)}
    measured = {row.label for row in rows_of_report(suite)[part]}
    assert measured <= labels
    assert len(labels - measured) <= (name == "deepbench-training")  # a row that its time did not reach


@pytest.mark.parametrize("name", [name for name, section in PARTS.items() if section.groups])
def test_groups_and_shards_share_out_a_part(name: str) -> None:
    section = PARTS[name]

    def labels(groups: tuple[str, ...], shard: Shard | None = None) -> list[str]:
        return [row.label for row in section.rows(0.0, [], groups, shard)]

    whole = sorted(labels(section.groups))
    assert sorted(chain.from_iterable(labels((group,)) for group in section.groups)) == whole
    if section.is_sharded:
        shards = [labels(section.groups, Shard(number, 5)) for number in range(1, 6)]
        assert all(shards)
        assert sorted(chain.from_iterable(shards)) == whole


# Tables and pictures.


def tables(file: Path) -> list[str]:
    """What a report says of its run and rows: its headings, tables and lists. Prose between them may be written anew."""
    lines = file.read_text().splitlines()
    return lines[:3] + [line for line in lines if line.startswith(("#", "|", "- ", "!"))]


def written(name: str, file: Path, folder: Path) -> tuple[Any, dict[str, Any]]:
    """The report of a file, written into a folder; and what its JSON has beside rows."""
    report = stored.joined(name, [file])
    report.write(folder)
    return report.rows, {**json.loads((folder / f"{name}.json").read_text()), "rows": [], "runs": []}


@pytest.mark.parametrize("stored_file", REPORTS, ids=lambda path: str(path.relative_to(COMMITTED).with_suffix("")))
def test_a_stored_report_is_what_is_rendered(stored_file: Path, tmp_path: Path) -> None:
    folder, name = stored_file.parent, stored_file.stem
    rows, others = written(name, stored_file, tmp_path)
    assert others == {**others, **json.loads(stored_file.read_text()), "rows": [], "runs": []}
    assert written(name, tmp_path / f"{name}.json", tmp_path / "again") == (rows, others)
    again = f"run python -m pytest_ecornn join {stored_file} --output FOLDER, and copy what differs"
    assert tables(tmp_path / f"{name}.md") == tables(folder / f"{name}.md"), again
    pictures = sorted(tmp_path.glob("*.svg"))
    assert bool(pictures) == (name in ("deepbench", "language_model", "scan"))
    assert [one.name for one in pictures if one.read_text() != (folder / one.name).read_text()] == [], again


def test_no_picture_is_left_out() -> None:
    """A stored one that no command renders would stay as it was."""
    names = {path.name for path in COMMITTED.rglob("*.svg") if "local" not in path.parts}
    prefixes = ("scan_", "words_per_s_", "deepbench_")
    assert {name for name in names if not name.startswith(prefixes)} == {"summary.svg", "chart.svg"}


# `python -m pytest_ecornn join`.


def test_every_suite_that_has_a_plan_is_known() -> None:
    suites = Path(stored.__file__).parent.glob("*.py")
    assert sorted(path.stem for path in suites if re.search(r"^PLAN\b", path.read_text(), re.M)) == sorted(stored.NAMES)
    for plan in map(stored.plan, stored.NAMES):
        names = [*plan.parts, *(group for section in plan.parts.values() for group in section.groups)]
        assert len(names) == len(set(names)), "--parts takes both"
    assert [stored.plan(name).name for name in stored.NAMES] == list(stored.NAMES)


def test_a_suite_s_report_is_joined_by_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["join", str(COMMITTED / "h200/sparse.json"), "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"1 report of sparse: {tmp_path}/sparse.md, .json\n"
    assert (tmp_path / "sparse.md").read_text().startswith("# sparse_persistent_gpu on this machine\n")
    assert not (tmp_path / "report.json").exists()


def test_a_folder_s_reports_are_all_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    for name in ("cpu/report.json", "h200/sparse.json", "h200/persistent.json"):
        shutil.copy(COMMITTED / name, folder)
    assert main(["join", str(folder), str(COMMITTED / "h200/sparse.json"), "--output", str(tmp_path / "all")]) == 0
    said = capsys.readouterr().out
    assert "rows of 1 report: " in said
    assert "2 reports of sparse: " in said
    assert "1 report of persistent: " in said
    joined, found = (json.loads((where / "sparse.json").read_text())["rows"] for where in (tmp_path / "all", folder))
    assert {name: len(rows) for name, rows in joined.items()} == {name: len(rows) for name, rows in found.items()}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "report.json: cannot be read"),
        ({"sparse.json": "<b>"}, "sparse.json: expected the JSON of a report of sparse (JSONDecodeError"),
        ({"sparse.json": "[" * 100_000}, "sparse.json: expected the JSON of a report of sparse (RecursionError"),
    ],
)
def test_a_folder_that_holds_no_report_is_refused_in_one_line(
    files: dict[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert main(["join", str(tmp_path), "--output", str(tmp_path / "all")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path}/{said}")
    assert not (tmp_path / "all").exists()


# Rows.


def test_a_suite_s_cells_are_rows_beside_their_baseline() -> None:
    path = COMMITTED / "h100/deepbench.json"
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
    rows = stored_rows.load(COMMITTED / "h100/selection.json")
    case = "lstm-T35-B32-H650-L2-bfloat16-cuda-training"
    (answer,) = (one for one in answers(rows, set()) if one.case == case and one.column == "replay")
    assert answer.fastest
    assert answer.fastest.name == "auto"
    assert answer.ratio
    assert answer.ratio.baseline == "torch.nn"
    assert answer.is_certain


@pytest.mark.parametrize("name", ["cpu/selection", "h100/host_time", "h100/language_model", "h200/ecornn", "h200/scan"])
def test_suites_that_time_other_things_have_no_rows(name: str) -> None:
    assert stored_rows.load(COMMITTED / f"{name}.json") == []


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
