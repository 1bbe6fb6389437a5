"""Published suites and their stored reports: parts make the rows that are stored; these are rendered and read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.reporting.answer import answers
from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.suites.published import front_chart, stored, stored_rows
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED
from pytest_ecornn.suites.published.common.parted import from_json

ROOT = Path(__file__).parents[3]
COMMITTED = ROOT / "reports"
AGAIN = "run python -m pytest_ecornn.suites.published --render"
REPORTS = [path for path in stored.reports(COMMITTED) if path.stem in stored.NAMES]
PARTS = {f"{name}-{part}": section for name in stored.NAMES for part, section in stored.plan(name).parts.items()}
del PARTS["sparse_kernel-capacity"]  # which asks a device for its sizes
MEASURED = {name for name in PARTS if name.rpartition("-")[0] in {path.stem for path in REPORTS}}


# Parts.


@cache
def rows_of_report(name: str) -> Mapping[str, list[Any]]:
    files = (ROOT / folder / f"{name}.json" for folder in (*front_chart.FOLDERS, "reports/cpu"))
    return stored.load(next(filter(Path.exists, files))).rows


@pytest.mark.parametrize("name", PARTS)
def test_what_begins_after_the_deadline_says_so(name: str) -> None:
    section = PARTS[name]
    rows = list(section.rows(0.0, []))
    assert all(NOT_REACHED in repr(row) for row in rows)
    assert re.search(rf"{NOT_REACHED}|\b0 of (the 0|\d+) cases", section.render(rows))
    assert len({row.label for row in rows}) == len(rows) > 0
    assert [from_json(section.row, json.loads(json.dumps(asdict(row)))) for row in rows] == rows


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_what_is_measured_is_what_the_stored_report_has(name: str) -> None:
    suite, _, part = name.rpartition("-")
    labels = {row.label for row in PARTS[name].rows(0.0, [])}
    measured = {row.label for row in rows_of_report(suite)[part]}
    assert measured == labels


# Tables and pictures.


def tables(file: Path) -> list[str]:
    """What a report says of its run and rows: its headings, tables and lists. Prose between them may be written anew."""
    lines = file.read_text().splitlines()
    return lines[:3] + [line for line in lines if line.startswith(("#", "|", "- ", "!"))]


def written(file: Path, folder: Path) -> tuple[Any, dict[str, Any]]:
    """The report of a file, written into a folder; and what its JSON has beside rows."""
    report = stored.load(file)
    report.write(folder)
    return report.rows, {**json.loads((folder / file.name).read_text()), "rows": [], "runs": []}


@pytest.mark.parametrize("stored_file", REPORTS, ids=lambda path: str(path.relative_to(COMMITTED).with_suffix("")))
def test_a_stored_report_is_what_is_rendered(stored_file: Path, tmp_path: Path) -> None:
    folder, name = stored_file.parent, stored_file.stem
    rows, others = written(stored_file, tmp_path)
    assert others == {**others, **json.loads(stored_file.read_text()), "rows": [], "runs": []}
    assert written(tmp_path / f"{name}.json", tmp_path / "again") == (rows, others)
    assert tables(tmp_path / f"{name}.md") == tables(folder / f"{name}.md"), AGAIN
    pictures = sorted(tmp_path.glob("*.svg"))
    assert bool(pictures) == (name in ("language_model", "scan_kernel"))
    assert [one.name for one in pictures if one.read_text() != (folder / one.name).read_text()] == [], AGAIN


@pytest.mark.parametrize("folder", [path.parent for path in stored.reports(COMMITTED) if stored.is_of_set(path)], ids=str)
def test_a_page_about_a_stored_run_is_what_is_rendered(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "report.json", tmp_path)
    page = stored.page(folder.name)
    assert page.main([str(tmp_path)]) == 0
    for path in (*tmp_path.glob("*.svg"), tmp_path / f"{page.name}.md"):
        assert path.read_text() == (folder / path.name).read_text(), AGAIN
    charts = {path.name for path in folder.glob(f"{page.name}*.svg")}
    assert charts == {path.name for path in tmp_path.glob("*.svg")}


def test_a_page_without_a_report_says_what_was_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        stored.page("sparse").main([str(tmp_path)])
    assert f"{tmp_path}/report.json: cannot be read" in capsys.readouterr().err


def test_no_picture_is_left_out() -> None:
    """A stored one that no command renders would stay as it was."""
    names = {path.name for path in COMMITTED.rglob("*.svg") if "local" not in path.parts}
    prefixes = ("scan_", "words_per_s_", "deepbench_")
    assert {name for name in names if not name.startswith(prefixes)} == {"summary.svg", "chart.svg"}


def test_every_suite_that_has_a_plan_is_known() -> None:
    suites = Path(stored.__file__).parent.glob("*.py")
    assert sorted(path.stem for path in suites if re.search(r"^PLAN\b", path.read_text(), re.M)) == sorted(stored.NAMES)
    assert [stored.plan(name).name for name in stored.NAMES] == list(stored.NAMES)
    pages = (path.stem for path in Path(stored.__file__).parent.glob("*.py") if re.search(r"^PAGE\b", path.read_text(), re.M))
    assert sorted(pages) == sorted(stored.PAGES)
    assert [stored.page(name).name for name in stored.PAGES] == list(stored.PAGES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("<b>", "expected the JSON of a report of host_time (JSONDecodeError"),
        ("[" * 100_000, "expected the JSON of a report of host_time (RecursionError"),
    ],
)
def test_a_file_that_holds_no_report_is_refused_in_one_line(text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "host_time.json").write_text(text)
    with pytest.raises(ReportError, match=rf"^{re.escape(f'{tmp_path}/host_time.json: {said}')}[^\n]*$"):
        stored.load(tmp_path / "host_time.json")


# Rows.


def test_the_choice_of_auto_is_a_row_beside_torch() -> None:
    rows = stored_rows.load(COMMITTED / "h100/selection.json")
    case = "lstm-T35-B32-H650-L2-bfloat16-cuda-training"
    (answer,) = (one for one in answers(rows, set()) if one.case == case and one.column == "replay")
    assert answer.fastest
    assert answer.fastest.name == "auto"
    assert answer.ratio
    assert answer.ratio.baseline == "torch.nn"
    assert answer.is_certain


@pytest.mark.parametrize("name", ["cpu/selection", "h100/host_time", "h100/language_model", "h200/ecornn", "h200/scan_kernel"])
def test_suites_that_time_other_things_have_no_rows(name: str) -> None:
    assert stored_rows.load(COMMITTED / f"{name}.json") == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("selection", "[" * 100_000),
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
    (tmp_path / "host_time.json").write_text(text)
    assert stored_rows.fingerprint(stored_rows.load_json(tmp_path / "host_time.json")) == {}
