"""Sweeps: what braces in a case's name stand for, files of cases, and what is said of wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_ecornn.cases.case_sets import Origin, case_set
from pytest_ecornn.cases.sweeps import MAX_CASES, expand_sweep, read_cases
from pytest_ecornn.contract import Case
from pytest_ecornn.results.rows import PublishedTime


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("lstm-T1-B1-H1", ["lstm-T1-B1-H1"]),
        ("B{1,8,64}", ["B1", "B8", "B64"]),
        ("{lstm,gru}-H{4..16}", ["lstm-H4", "lstm-H8", "lstm-H16", "gru-H4", "gru-H8", "gru-H16"]),
        ("H{256..2048}", ["H256", "H512", "H1024", "H2048"]),
        ("H{3..13}", ["H3", "H6", "H12"]),
        ("H{5..9}", ["H5"]),
        ("H{7..7}", ["H7"]),
        ("H{100..300..64}", ["H100", "H164", "H228", "H292"]),
        ("seed{0..2..1}", ["seed0", "seed1", "seed2"]),
        ("density{0.1,0.25}", ["density0.1", "density0.25"]),
        ("H8{,-training}", ["H8", "H8-training"]),
        ("", [""]),
    ],
)
def test_braces_stand_for_all_combinations_in_order(text: str, names: list[str]) -> None:
    assert expand_sweep(text) == names


@pytest.mark.parametrize("inside", ["", "8", "a..b", "1...8", "1..8,64", "8..1", "0..8", "-1..8", "1..8..0", "1..2..3..4"])
def test_other_braces_are_answered_with_the_forms_and_what_came(inside: str) -> None:
    with pytest.raises(ValueError, match=r"^'B\{.*\}': expected \{a,b,c\}, .* or \{a\.\.b\.\.s\}") as error:
        expand_sweep(f"B{{{inside}}}")
    assert str(error.value).endswith(f"got {{{inside}}}")


@pytest.mark.parametrize("text", ["B{1,8", "B1,8}", "B{1,{8,64}}", "B}1{"])
def test_a_brace_without_its_other_one_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(f"{text!r}: expected each brace to have its other one")):
        expand_sweep(text)


def test_a_sweep_of_too_many_cases_is_refused_before_it_is_made() -> None:
    assert len(expand_sweep("T{1..100..1}-B{1..100..1}")) == MAX_CASES
    for text, count in {"T{1..100..1}-B{1..101..1}": "10,100", "T{1..999999999..1}-B{1..8}": "3,999,999,996"}.items():
        with pytest.raises(ValueError, match=f"expected a sweep of at most 10,000 cases, got {count}$"):
            expand_sweep(text)


def test_a_file_has_a_case_or_a_sweep_a_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("# from the paper\n\nlstm-T2-B{1,2}-H4\n  # small:\ngru-T1-B1-H8-training\n")
    names = ["lstm-T2-B1-H4-float32", "lstm-T2-B2-H4-float32", "gru-T1-B1-H8-float32-training"]
    assert list(map(str, read_cases(str(path), Case.parse))) == names


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# none\n", ": expected lines that are no comments, got none"),
        ("lstm-T1-B1-H1\n\nlstm-T1-B{1-H1\n", ", line 3: 'lstm-T1-B{1-H1': expected each brace to have its other one"),
        ("lstm-T1-B{1,x}-H1\n", ", line 1: cannot read 'Bx' in case 'lstm-T1-Bx-H1'"),
    ],
)
def test_a_wrong_file_is_answered_with_its_line(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}{problem}")):
        list(read_cases(str(path), Case.parse))


def test_a_file_that_cannot_be_read_is_answered_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^absent\.txt: cannot be read \(No such file or directory\)"):
        list(read_cases("absent.txt", Case.parse))
    (tmp_path / "latin.txt").write_bytes("gru-T1-B1-H1 # é".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.txt: cannot be read \(.*utf-8"):
        list(read_cases(str(tmp_path / "latin.txt"), Case.parse))


def test_a_line_of_a_case_set_may_be_a_sweep(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text('case,label,published_us\n"lstm-T1-B{1,2}-H4",small,5\nlstm-T1-B2-H4,twice,\n')
    of_both = (PublishedTime(5.0),)
    assert {case.batch: origin for case, origin in case_set(str(path)).items()} == {
        1: Origin("small", "", of_both),
        2: Origin("small; twice", "", of_both),
    }
    path.write_text("case\nlstm-T1-B{1..x}-H4\n")
    with pytest.raises(ValueError, match=r"line 2: 'lstm-T1-B\{1\.\.x\}-H4': expected \{a,b,c\}.*, got \{1\.\.x\}$"):
        case_set(str(path))
