"""The answer of a report: one table of all cases, bold where it is certain, and the same in every output."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from pytest_ecornn import reporting
from pytest_ecornn.reporting import answer_table, comparison_tables, standing
from pytest_ecornn.reporting.answer import Answer, answers, of_case
from pytest_ecornn.results.rows import Row, Timing
from tests.helpers.reporting.outputs import csv_of, printed
from tests.helpers.reporting_samples import CASES, drawn, row, sample_rows, sample_run, timing

NAMES = ("a", "b", "c", "d")
VERDICTS = ("faster", "slower", "same", "unclear")


def answer(*rows: Row) -> Answer:
    return of_case(list(rows), reporting.unproven(rows))


def timed(name: str, time_us: float, baselines: dict[str, float] | None = None, spread: float = 0.01, verdict: str = "") -> Row:
    """verdict: to each baseline, that of `timing` unless given."""
    times = timing(time_us, baselines or {})
    times.low_us, times.high_us = time_us * (1 - spread), time_us * (1 + spread)
    for ratio in times.against:
        ratio.verdict = verdict or ratio.verdict
    return row(name, CASES[0], timing=times)


# What is certain.


BASE, TO_BASE = ("base", 100.0), {"base": 100.0}
CERTAINTIES = {
    "verdict and intervals say so": ([BASE, ("a", 50.0, TO_BASE), ("b", 80.0, TO_BASE)], ("a", "faster", ())),
    "all are slower than a baseline": ([BASE, ("a", 150.0, TO_BASE), ("b", 120.0, TO_BASE)], ("base", "others slower", ())),
    "two cannot be separated": ([BASE, ("a", 50.0, TO_BASE), ("b", 50.5, TO_BASE)], ("", "faster", ("b",))),
    "no baseline": ([("a", 100.0), ("b", 101.5), ("c", 103.0)], ("", "not compared", ("b",))),
    "called slower, however wide its interval": ([BASE, ("slow", 120.0, TO_BASE, 0.6)], ("base", "others slower", ())),
    "one alone": ([("a", 1.0)], ("", "alone", ())),
    "an undecided verdict": ([BASE, ("a", 50.0, TO_BASE, 0.01, "same")], ("", "same", ("base",))),
    "an unclear verdict": ([BASE, ("a", 50.0, TO_BASE, 0.01, "unclear")], ("", "unclear", ("base",))),
    "a baseline without a row of its own": ([("mine", 150.0, TO_BASE)], ("base", "others slower", ())),
}


@pytest.mark.parametrize("name", CERTAINTIES)
def test_only_what_is_certain_is_bold_and_rivals_are_named(name: str) -> None:
    times, answered = CERTAINTIES[name]
    result = answer(*(timed(*arguments) for arguments in times))
    assert (result.bold, result.verdict, result.rivals) == answered
    if result.bold == "base":
        assert result.fastest is not None
        assert (result.fastest.time_us, result.ratio) == (100.0, None)


def test_a_baseline_that_is_not_proven_is_no_rival_and_gives_no_verdict() -> None:
    rows = [timed("base", 10.0), timed("a", 50.0, {"base": 10.0}), timed("b", 80.0, {"base": 10.0})]
    result = of_case(rows, reporting.unproven([*rows, drawn("base", "lstm", "failed")]))
    assert (result.bold, result.verdict) == ("", "not compared")
    assert result.fastest is not None
    assert result.fastest.name == "a"


@pytest.mark.parametrize(
    ("status", "counted"), [("failed", "without a proven time"), ("skipped", "refused by every implementation")]
)
def test_a_case_without_a_proven_time_says_how_it_ended(status: str, counted: str) -> None:
    result = answer(row("a", CASES[0], status=status), row("b", CASES[0], status="skipped"))
    assert result.verdict == status
    assert answer_table.counts_line([result]) == f"1 case: 1 {counted}"


# Bold and verdict agree, whatever the rows are.

_TIMES = st.floats(1.0, 1e3) | st.just(float("nan"))


@st.composite
def rows_of_a_case(draw: st.DrawFn) -> list[Row]:
    """Rows with random times, intervals, ratios, verdicts and ends: more contradictions than a run would have."""
    baselines = draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
    rows = []
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True)):
        status = draw(st.sampled_from(["passed", "passed", "passed", "failed", "skipped", "unproven"]))
        if status in ("failed", "skipped"):
            rows.append(row(name, CASES[0], status=status))
            continue
        one = row(name, CASES[0], status=status)
        one.timing = draw(timings([base for base in baselines if base != name]))
        one.replay = draw(st.none() | timings([base for base in baselines if base != name]))
        rows.append(one)
    return rows


@st.composite
def timings(draw: st.DrawFn, baselines: list[str]) -> Timing:
    time_us = draw(_TIMES)
    one = timing(time_us, dict.fromkeys(baselines, 100.0))
    one.low_us, one.high_us = (time_us * draw(st.floats(0.5, 1.0)), time_us * draw(st.floats(1.0, 2.0)))
    for ratio in one.against:
        ratio.low, ratio.high = ratio.ratio * draw(st.floats(0.5, 1.0)), ratio.ratio * draw(st.floats(1.0, 2.0))
        ratio.verdict = draw(st.sampled_from(VERDICTS))
    return one


def is_certainly_slower(other: Timing | None, other_name: str, best: Timing | None, best_name: str) -> bool:
    """Whether verdicts, or intervals where the two did not take turns, say that the other is slower; None has no row."""
    to_best = next((ratio.verdict for ratio in (other.against if other else ()) if ratio.baseline == best_name), "slower")
    to_other = next((ratio.verdict for ratio in (best.against if best else ()) if ratio.baseline == other_name), "faster")
    took_turns = any(ratio.baseline == best_name for ratio in (other.against if other else ()))
    if took_turns or any(ratio.baseline == other_name for ratio in (best.against if best else ())):
        return (to_best, to_other) == ("slower", "faster")
    if other is None or best is None:
        return False
    for ratio in best.against:
        common = next((one for one in other.against if one.baseline == ratio.baseline), None)
        if common is not None:
            return ratio.high < common.low
    return best.high_us < other.low_us


@settings(max_examples=200, deadline=None)
@given(rows_of_a_case())
def test_bold_is_certain_and_what_is_certain_is_bold(rows: list[Row]) -> None:
    unproven = reporting.unproven(rows)
    for column in standing.columns(rows):
        result = of_case(rows, unproven, column)
        proven = {one.implementation: standing.is_publishable(one, unproven, column) for one in rows}
        withheld = {name for name, shown in proven.items() if shown is None}
        shown: dict[str, Timing | None] = {name: one for name, one in proven.items() if one is not None}
        bases = {ratio.baseline for one in shown.values() if one for ratio in one.against} - withheld
        for one in shown.values():
            assert one is not None
            one.against = [ratio for ratio in one.against if ratio.baseline not in withheld]
        others = {**dict.fromkeys(bases), **shown}
        if result.fastest is None:
            assert not shown
            continue
        best = others.pop(result.fastest.name)
        is_ahead = all(is_certainly_slower(other, name, best, result.fastest.name) for name, other in others.items())
        assert bool(result.bold) == (is_ahead and result.verdict in ("faster", "others slower"))
        if result.bold and best is not None:
            assert {ratio.verdict for ratio in best.against} <= {"faster"}


@settings(max_examples=100, deadline=None)
@given(rows_of_a_case())
def test_all_outputs_say_the_same(rows: list[Row]) -> None:
    unproven = reporting.unproven(rows)
    results = answers(rows, unproven)
    table = answer_table.terminal_table(results)
    on_terminal = [[str(cell) for cell in column.cells] for column in table.columns[1:]]
    markdown = [line.split(" | ") for line in answer_table.markdown_table(results).splitlines()[2:]]
    texts = [[re.sub(r"\*\*|\\| \|$", "", cell) for cell in line[-5:]] for line in markdown]
    assert list(map(list, zip(*on_terminal, strict=True))) == texts
    is_bold = ["bold" in str(cell.style) for cell in table.columns[1].cells if isinstance(cell, Text)]
    assert is_bold == ["**" in line[-5] for line in markdown] == [bool(one.bold) for one in results]
    proven = {
        (one.implementation, column)
        for one in rows
        for column in standing.COLUMNS
        if standing.is_publishable(one, unproven, column)
    }
    compared = comparison_tables.comparison(rows, rows, unproven)
    assert compared.count("**") == 2 * sum((one.bold, one.column) in proven for one in results)


# Where it stands.


def test_the_report_begins_with_the_answers_and_how_sure_they_are(tmp_path: Path) -> None:
    reporting.write_reports(tmp_path, sample_run(), sample_rows())
    text = (tmp_path / "report.md").read_text()
    parts = ("| Case | Fastest |", "How sure this is:", "## How to read it", "## lstm, inference")
    table, sure, reading, cells = map(text.index, parts)
    assert table < sure < reading < cells
    assert "|" not in text[:table]
    assert f"| {CASES[0]} | **blocked_cpu** | **2.31 ms** | 0.33 \\[0.33, 0.34\\] | torch_cpu | faster |" in text
    assert "- budget: 2 s a row" in text[sure:reading]


def test_the_csv_begins_with_timed_rows(tmp_path: Path) -> None:
    reporting.write_reports(tmp_path, sample_run(), [drawn("a", "lstm"), *sample_rows()])
    has_time = [bool(line["time_us"]) for line in csv_of(tmp_path)]
    assert has_time == sorted(has_time, reverse=True)


def test_the_table_fits_80_columns_with_every_figure_whole() -> None:
    rows = sample_rows()
    text = printed(answer_table.terminal_table(answers(rows, reporting.unproven(rows)), 80), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"blocked_cpu +2\.31 ms +0\.33 \[0\.33, 0\.34\] +faster", text)


def test_a_stored_report_is_rendered_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pytest_ecornn.reporting.__main__ import main

    reporting.write_reports(tmp_path, sample_run(), sample_rows())
    names, before = set(tmp_path.iterdir()), (tmp_path / "report.md").read_text()
    (tmp_path / "report.md").unlink()
    assert main([str(tmp_path)]) == 0
    assert (set(tmp_path.iterdir()), (tmp_path / "report.md").read_text()) == (names, before)
    assert main([str(tmp_path / "absent")]) == 1
    assert "report.json: cannot be read" in capsys.readouterr().err


def test_what_chose_another_is_no_rival_of_it() -> None:
    chooser = timed("chooser", 50.5, {"base": 100.0})
    chooser.delegate = "a"
    result = answer(timed(*BASE), timed("a", 50.0, TO_BASE), chooser)
    assert (result.bold, result.rivals) == ("a", ())
    chooser.delegate = "another"
    assert answer(timed(*BASE), timed("a", 50.0, TO_BASE), chooser).rivals == ("chooser",)
    chooser.delegate = "base"
    assert answer(timed("chooser", 99.0, TO_BASE)).rivals == ("base",)
    assert answer(replace(chooser, timing=timed("chooser", 99.0, TO_BASE).timing)).rivals == ()
