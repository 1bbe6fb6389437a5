"""What GitHub shows: annotations that its parser reads back, a summary and a comment that it takes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ecornn import reporting
from pytest_ecornn.regression.gate import RegressionFinding, RegressionReport, StatusChange
from pytest_ecornn.reporting import github
from pytest_ecornn.reporting.conclusions import Conclusions
from pytest_ecornn.reporting.github import Problem
from pytest_ecornn.results.rows import AGAIN, EXPECTED
from pytest_ecornn.results.statistics import Ratio
from tests.helpers.reporting_samples import CASES, HOSTILE, hostile_rows, row, sample_rows, sample_run


def parsed(line: str) -> tuple[dict[str, str], str]:
    """The properties and the message of a workflow command, as a runner reads them."""
    assert "\n" not in line
    assert "\r" not in line
    command, message = line.removeprefix("::error ").split("::", 1)
    pairs = dict(pair.split("=", 1) for pair in command.split(","))
    for code, character in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        pairs = {name: value.replace(code, character) for name, value in pairs.items()}
        message = message if code in ("%3A", "%2C") else message.replace(code, character)
    return pairs, message


def compared(count: int, changes: int = 0) -> RegressionReport:
    slow = RegressionFinding(
        "slow", CASES[0], "timing", (100.0, 120.0), 0.05, "base", None, None, Ratio(1.2, 1.1, 1.3), "slower"
    )
    changed = [StatusChange("benchmark", f"gone{n}", CASES[0], "passed", "skipped", "no") for n in range(changes)]
    changed += [StatusChange("benchmark", "better", CASES[0], "failed", "passed", "was wrong")] * bool(changes)
    unclear = replace(slow, implementation="noisy", verdict="unclear")
    return RegressionReport([slow] * count + [unclear] * count, changed, [], [], 0.999, "report.json", "2025-01-31")


@pytest.mark.parametrize("text", ["50 %, a: b\nc\r\nd", "100%0A::error::x", HOSTILE])
def test_an_annotation_is_one_line_that_a_runner_reads_back(text: str) -> None:
    at = github.place(Path("x,y:%.py"), 7, Path())
    pairs, message = parsed(github.annotation(Problem("a, b: %", "case", "failed", text), at))
    assert (pairs["file"], pairs["line"], pairs["title"]) == ("x,y:%.py", "7", "a, b: % failed: case")
    assert message.splitlines()[0].startswith(text[:4])
    assert "\x1b" not in message


def test_a_long_reason_is_cut_and_its_command_is_not() -> None:
    pairs, message = parsed(github.annotation(Problem("a", "case", "failed", "x" * 9_000 + AGAIN + "pytest --all"), ""))
    assert list(pairs) == ["title"]
    assert len(message) < 2_100
    assert message.endswith("...\nagain: pytest --all")


def test_each_implementation_has_an_annotation_before_another_has_two() -> None:
    rows = [row(name, case, status="failed", reason="wrong") for name in ("a", "b") for case in CASES[:2]]
    rows.append(row("c", CASES[0], status="failed", reason=f"{EXPECTED}known"))
    found = [(one.implementation, one.what) for one in github.problems(rows, compared(1, 1))]
    assert found == [
        *[("a", "failed"), ("b", "failed"), ("slow", "slower"), ("gone0", "passed then, skipped now")],
        *[("a", "failed"), ("b", "failed")],
    ]
    assert github.problems(sample_rows()[:1]) == []


def test_a_place_is_below_the_checkout_or_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    assert github.place(root / "sub" / "a.py", 3, root) == "file=sub/a.py,line=3,"
    assert github.place(tmp_path / "a.py", 3, root) == ""
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert github.place(root / "sub" / "a.py", 3, root) == "file=root/sub/a.py,line=3,"


def test_a_summary_of_any_run_says_how_rows_ended_what_failed_and_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    github.append_summary("Recurrent layers", sample_rows())
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    github.append_summary("Recurrent layers", sample_rows())
    text = (tmp_path / "summary.md").read_text()
    assert text.startswith("## Recurrent layers: 26 rows: 17 passed, 1 unproven, 2 failed")
    assert "**scan_wrong** on" in text
    assert f"| {CASES[0]} | **blocked_cpu**" in text


def test_a_comment_begins_with_the_verdict_and_folds_the_rest(tmp_path: Path) -> None:
    paths = reporting.write_reports(tmp_path, sample_run(), sample_rows(), compared(15, 9))
    assert tmp_path / "comment.md" in paths
    text = (tmp_path / "comment.md").read_text()
    assert text.startswith("## Recurrent layers: 15 slower than their limit; 9 passed then and not now\n\n| Case |")
    shown, details = text.split("<details><summary>Details</summary>")
    assert len(re.findall(r"^\| (?!Case|---)", shown, re.M)) == 20
    assert len(re.findall(r"\| gone\d \|", shown)) == 5
    assert "20 more rows in report.md." in shown
    assert "- gate failed: 15 slower than their limit" in details
    assert details.endswith("\n\n</details>\n")


def test_a_comment_is_no_longer_than_github_takes() -> None:
    rows = [row("a", case, status="failed", reason=f"{number} " + "x" * 5_000) for number, case in enumerate(CASES * 9)]
    text = github.comment(Conclusions.of_rows([*rows, *sample_rows(), *hostile_rows()], {}), compared(400, 400))
    assert 50_000 < len(text) <= github.MAX_CHARS
    assert text.startswith("## Recurrent layers: 400 slower")
    assert text.endswith("More is in report.md.\n\n</details>\n")
    assert len(re.findall("^`{3,}", text, re.M)) % 2 == 0
