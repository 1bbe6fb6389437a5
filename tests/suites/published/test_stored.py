"""`python -m pytest_ecornn join` of the published suites' reports."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest

from pytest_ecornn.__main__ import main
from pytest_ecornn.suites.published import stored

SUITES = Path(stored.__file__).parent
COMMITTED = Path(__file__).parents[3] / "reports"


def test_every_suite_that_has_a_plan_is_known() -> None:
    planned = [path.stem for path in SUITES.glob("*.py") if "PLAN" in _assigned(path)]
    assert sorted(planned) == sorted(stored.NAMES)
    assert [stored.plan(name).name for name in stored.NAMES] == list(stored.NAMES)


def _assigned(path: Path) -> set[str]:
    nodes = ast.parse(path.read_text()).body
    return {
        target.id for node in nodes if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)
    }


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
    ("text", "said"),
    [
        ("<b>", "expected the JSON of a report of sparse (JSONDecodeError"),
        ("[" * 100_000, "expected the JSON of a report of sparse (RecursionError"),
    ],
)
def test_a_file_that_holds_none_is_refused_in_one_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sparse.json").write_text(text)
    assert main(["join", str(tmp_path), "--output", str(tmp_path / "all")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path}/sparse.json: {said}")
    assert not (tmp_path / "all").exists()


def test_a_folder_without_a_report_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["join", str(tmp_path), "--output", str(tmp_path / "all")]) == 1
    assert f"{tmp_path}/report.json: cannot be read" in capsys.readouterr().err
