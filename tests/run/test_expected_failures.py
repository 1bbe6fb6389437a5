"""The file of --ecornn-xfail: what a line matches, and what is said of a line that is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_ecornn.regression.gate import StatusChange
from pytest_ecornn.results.rows import EXPECTED, Row
from pytest_ecornn.run.expected_failures import ExpectedFailure, ExpectedFailures

CASE = "lstm-T6-B3-H8-float32"


def row(kind: str = "fixed", case: str = CASE) -> Row:
    return Row(kind, "mine", case, "lstm", "float32", "cpu", "inference", "failed", "it is wrong")


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        (f"mine {CASE}", {"fixed", "benchmark"}),
        ("m?ne lstm-*-float32", {"fixed", "benchmark"}),
        ("* *", {"fixed", "benchmark"}),
        (f"mine properties:{CASE}", {"properties"}),
        ("* properties:*", {"properties"}),
        ("mine lstm", set()),
        (f"min {CASE}", set()),
        (f"Mine {CASE}", set()),
    ],
)
def test_a_line_matches_rows_by_names_or_globs_and_never_a_control(line: str, kinds: set[str]) -> None:
    expected = ExpectedFailure(*line.split(), reason="known")
    all_kinds = ("fixed", "properties", "benchmark", "control")
    assert {kind for kind in all_kinds if expected.matches(row(kind))} == kinds


def test_an_unknown_name_is_told_with_the_nearest_of_the_run() -> None:
    rows = [row(), row("properties"), row("control", "lstm-T6-B3-H9")]
    assert ExpectedFailure("mine", "lstm-T6-B3-H8", "known").nearest(rows) == f"mine {CASE}"
    assert ExpectedFailure("mine", "property:lstm-T6-B3-H8", "known").nearest(rows) == f"mine properties:{CASE}"
    assert ExpectedFailure("else", "gru", "known").nearest(rows) == ""


def test_a_file_has_comments_and_reasons_of_many_words(tmp_path: Path) -> None:
    path = tmp_path / "known.txt"
    path.write_text(f"# of the last release\n\nmine   {CASE}  gates swapped, see #12\n* gru-* later\n")
    found = ExpectedFailures.read(path)
    assert found == ("known.txt", (("mine", CASE, "gates swapped, see #12"), ("*", "gru-*", "later")))
    assert found.of(row()) == found.lines[0]
    assert found.of(row(case="rnn_tanh-T1-B1-H1-float32")) is None


@pytest.mark.parametrize("line", ["mine", f"mine {CASE}"])
def test_a_line_without_a_reason_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "known.txt"
    path.write_text(f"# none\n{line}\n")
    with pytest.raises(ValueError, match=re.escape(f"{path}, line 2: expected IMPLEMENTATION CASE REASON, got {line!r}")):
        ExpectedFailures.read(path)


def test_the_gate_takes_no_expected_failure_for_a_change_for_the_worse() -> None:
    for reason, is_worse in {"it is wrong": True, f"{EXPECTED}known\nit is wrong": False}.items():
        assert StatusChange("benchmark", "mine", CASE, "passed", "failed", reason).is_worse is is_worse
