"""Reports: nothing unproven is published, nothing is lost, and no text from outside can break them."""

from __future__ import annotations

import html
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import pytest_ecornn
from pytest_ecornn import reporting
from pytest_ecornn.reporting import (
    ReportError,
    answer_table,
    files,
    json_report,
    markdown,
    markdown_syntax,
    standing,
    undecided,
)
from pytest_ecornn.reporting.answer import answers
from pytest_ecornn.reporting.conclusions import Conclusions
from pytest_ecornn.reporting.console import page
from pytest_ecornn.reporting.console.progress import Progress
from pytest_ecornn.reporting.console.rows_table import rows_table
from pytest_ecornn.reporting.console.summary import print_summary
from pytest_ecornn.reporting.pictures import summary
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import Doubt, Row, TensorError
from tests.helpers.reporting.outputs import csv_of, printed
from tests.helpers.reporting_samples import (
    BUSY,
    CASES,
    HOSTILE,
    concluded,
    drawn,
    gpu_smoke_rows,
    hostile_rows,
    row,
    sample_rows,
    sample_run,
    timing,
)

ROOT = Path(__file__).parents[2]
NAMES = ["benchmark.json", "report.csv", "report.html", "report.json", "report.md", "summary.svg"]
UNPROVEN = ("benchmark", "blocked_cpu", CASES[2])
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the report of the sample run."""
    directory = tmp_path_factory.mktemp("written")
    paths = reporting.write_reports(directory / "new" / "folder", sample_run(), sample_rows())
    assert sorted(path.name for path in paths) == NAMES
    return directory / "new" / "folder"


def tables(text: str) -> list[list[str]]:
    """The tables of a Markdown text, each as its lines."""
    blocks = re.split(r"\n\n+", re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", text))
    return [block.splitlines() for block in blocks if block.startswith("|")]


# What may be published.


@pytest.mark.parametrize("is_drawn_first", [True, False])
def test_rows_of_an_implementation_whose_drawn_cases_fail_are_unproven(is_drawn_first: bool) -> None:
    case = "mingru-T512-B8-H256-float32"
    timed = [row(name, f"{case}{rest}") for name in ("a", "b") for rest in ("", "-training", "-seed3")]
    other = [row("a", "mingru-T512-B8-H256-bfloat16"), row("a", "gru-T5-B8-H256-float32"), row("a", f"{case}-cuda")]
    other += [row("a", f"{case}-seed{number}", status=status) for number, status in ((4, "skipped"), (5, "failed"))]
    failed = [drawn("a", "mingru", "failed")]
    rows = [*failed, *timed, *other] if is_drawn_first else [*timed, *other, *failed]
    assert reporting.unproven(rows) == {one.key for one in timed if one.implementation == "a"}


def test_unproven_times_are_withheld_from_tables_and_kept_in_json(written: Path) -> None:
    lines = (written / "report.md").read_text().splitlines()
    (line,) = (one for one in lines if one.startswith(f"| {CASES[2]} | blocked_cpu"))
    assert ("unproven" in line, "2.31 ms" in line) == (True, False)
    in_json, in_csv = json.loads((written / "report.json").read_text())["rows"], csv_of(written)
    (marked,), lines = (
        [one for one in rows if (one["kind"], one["implementation"], one["case"]) == UNPROVEN] for rows in (in_json, in_csv)
    )
    assert (marked["status"], marked["timing"]["time_us"]) == ("unproven", 2310.0)
    assert [(one["status"], one["verdict"], one["time_us"]) for one in lines] == [("unproven", "", "2310.0")]
    benchmarks = json.loads((written / "benchmark.json").read_text())["benchmarks"]
    assert ("blocked_cpu", CASES[2]) not in {(one["name"], one["group"]) for one in benchmarks}


def test_no_verdict_is_passed_on_a_comparison_with_an_unproven_baseline() -> None:
    rows = [row("base", CASES[0], timing=timing(2e3, {})), row("a", CASES[0], timing=timing(1e3, {"base": 2e3}))]
    rows.append(drawn("base", "lstm", "failed"))
    unproven = reporting.unproven(rows)
    assert "faster" not in concluded(rows, unproven).counts[0]
    assert "unproven baseline" in shown(rows)


# Files.


def test_a_write_that_fails_midway_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(tmp_path / "report.md", "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReportError, match=r"report\.md: cannot be written \(No space left on device\)"):
        files.write(tmp_path / "report.md", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("report.md", "old")]


def test_a_directory_that_cannot_be_written_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReportError, match=r"^[^\n]*/file/reports/report\.md: cannot be written \([^\n]*$"):
        reporting.write_reports(tmp_path / "file" / "reports", sample_run(), sample_rows())


def test_a_file_that_fails_does_not_keep_the_others_from_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report.csv").mkdir()
    monkeypatch.setattr(summary, "render", lambda run, conclusions: 1 / 0)
    with pytest.raises(ReportError, match=r"report\.csv: cannot be written.*summary\.svg: cannot be rendered \(ZeroDiv"):
        reporting.write_reports(tmp_path, sample_run(), sample_rows())
    assert sorted(path.name for path in tmp_path.iterdir()) == [name for name in NAMES if name != "summary.svg"]


@pytest.mark.parametrize("rows", [[], [row("a", CASES[0], status="skipped", reason="no")], hostile_rows()])
def test_every_file_is_written_whatever_the_rows(tmp_path: Path, rows: list[Row]) -> None:
    run = reporting.RunInfo(HOSTILE, 0.0, HOSTILE, {HOSTILE: {HOSTILE: [HOSTILE, 1, None]}}, {"copy_points": {HOSTILE: 1}})
    assert len(reporting.write_reports(tmp_path, run, rows)) == len(NAMES)


# JSON.


def test_json_reads_back_what_was_written(written: Path) -> None:
    run, rows = reporting.read_report(written / "report.json")
    expected = [replace(one, status=standing.status(one, {UNPROVEN})) for one in sample_rows()]
    assert (run, rows) == (sample_run(), expected)
    assert reporting.unproven([one for one in rows if one.kind != "drawn"]) == {UNPROVEN}


def test_json_keeps_numbers_that_json_lacks_and_is_strict_nevertheless() -> None:
    tensor = TensorError("output", "failed", NAN, INF, -INF, "nan")
    one = row("inf", CASES[0], status="failed", tensors=[tensor], timing=timing(10.0, {"b": 5.0}), notes="nan")
    assert one.timing is not None
    one.timing.gb_per_s, one.timing.samples_us[1] = INF, NAN
    run = sample_run()
    run.ceilings["copy_points"]["32768"] = NAN
    text = json_report.render(run, [one], set())
    assert not re.search(r"[^\"]\b(NaN|Infinity)", text)
    back_run, back = read_text(text)
    assert repr(back[0].as_dict()) == repr(one.as_dict())
    assert repr(back_run) == repr(run)


def read_text(text: str) -> tuple[reporting.RunInfo, list[Row]]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "report.json"
        path.write_text(text)
        return reporting.read_report(path)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"rows": [', '"rows": [,', r"line 3: expected JSON \("),
        ('"schema_version": 1', '"schema_version": 9', r"line 1: expected an object with schema_version 1, got 9"),
        ('"command"', '"commando"', r"expected run to be an object with ceilings, command, .*, got .*commando"),
        ('"verdict"', '"veredict"', r"line 4 \(row 1\): BaselineRatio has no field veredict"),
        ('"time_us": 31400.0', '"time_us": "long"', r'line 4 \(row 1\): time_us: expected float, got "long"'),
        ('"status": "passed", "reason"', '"reason"', r"line 4 \(row 1\): Row: .*missing 1 required.*'status'"),
        ('"seconds": 312.5', '"seconds": NaN', r"expected strict JSON \(found NaN"),
        ('"kind": "benchmark"', '"kind": 3', r"line 4 \(row 1\): kind: expected str, got 3"),
    ],
)
def test_malformed_json_is_told_by_file_line_and_expectation(written: Path, old: str, new: str, expected: str) -> None:
    text = (written / "report.json").read_text()
    assert old in text
    with pytest.raises(ReportError, match=rf"report\.json.*{expected}") as failure:
        read_text(text.replace(old, new, 1))
    assert "\n" not in str(failure.value)


# CSV and benchmark.json.


def test_csv_keeps_no_formula_and_numbers_stay_numbers(tmp_path: Path) -> None:
    texts = ["=1+1", "+cmd", "-2+3", "@SUM(1)", "\t=1", "\r=1", "plain"]
    rows = [row("fast", CASES[0], notes=text, timing=timing(10.0, {"base": 20.0})) for text in texts]
    rows[0].timing.floor_share = -0.5  # type: ignore[union-attr]
    reporting.write_reports(tmp_path, sample_run(), rows)
    lines = csv_of(tmp_path)
    assert {line["notes"] for line in lines} == {"'=1+1", "'+cmd", "'-2+3", "'@SUM(1)", "'    =1", "'\\r=1", "plain"}
    assert float(lines[0]["floor_share"]) == -0.5


def test_csv_has_a_line_for_each_row_and_baseline(tmp_path: Path) -> None:
    rows = [row("a", CASES[0], timing=timing(10.0, {"b": 20.0, "c": 5.0})), row("b", CASES[0], timing=timing(20.0, {}))]
    reporting.write_reports(tmp_path, sample_run(), [*rows, *hostile_rows()])
    lines = csv_of(tmp_path)
    assert [(one["baseline"], one["ratio"], one["verdict"]) for one in lines if one["implementation"] == "a"] == [
        ("b", "0.5", "faster"),
        ("c", "2.0", "slower"),
    ]
    assert [one["baseline"] for one in lines if one["implementation"] == "b"] == [""]
    assert all(None not in one and None not in one.values() for one in lines)


def test_pytest_benchmark_compares_the_file_which_has_its_machine_and_seconds(written: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest_benchmark", "compare", str(written / "benchmark.json"), "--columns=median,rounds"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"benchmark '{CASES[0]}': 4 tests" in done.stdout
    assert re.search(r"^scan_cpu \S+ +7\.4\d+ .* 12 *$", done.stdout, re.MULTILINE)
    assert "Failed to load" not in done.stdout + done.stderr
    data = json.loads((written / "benchmark.json").read_text())
    assert data["machine_info"] == sample_run().machine["benchmark_machine_info"]
    assert data["commit_info"]["branch"] == "main"
    stats = {one["name"]: one["stats"] for one in data["benchmarks"] if one["group"] == CASES[0]}
    assert stats["scan_cpu"]["median"] == pytest.approx(7.41e-3, rel=0.02)
    assert stats["scan_cpu"]["iterations"] == 3


def test_programs_that_draw_histories_find_what_they_read(written: Path) -> None:
    """github-action-benchmark reads ops, mean, stddev and rounds, Bencher by its version mean and stddev, or median and iqr."""
    data = json.loads((written / "benchmark.json").read_text())
    assert (type(data["machine_info"]), type(data["commit_info"])) == (dict, dict)
    assert len({one["fullname"] for one in data["benchmarks"]}) == len(data["benchmarks"]) > 0
    for one in data["benchmarks"]:
        ops, mean, stddev, rounds, median, iqr = (
            one["stats"][name] for name in ("ops", "mean", "stddev", "rounds", "median", "iqr")
        )
        assert ops == pytest.approx(1 / mean)
        assert mean == pytest.approx(median, rel=0.5)
        assert (stddev >= 0, iqr >= 0, rounds > 0) == (True, True, True)


# Markdown.


@pytest.mark.parametrize("rows", [sample_rows(), hostile_rows()])
def test_markdown_tables_have_one_number_of_columns_each(tmp_path: Path, rows: list[Row]) -> None:
    run = sample_run()
    run.machine[HOSTILE], run.refused[HOSTILE] = HOSTILE, 0.5
    reporting.write_reports(tmp_path, run, rows)
    text = (tmp_path / "report.md").read_text()
    found = tables(text)
    assert len(found) >= 8
    for lines in found:
        assert {line.count("|") for line in lines} == {lines[0].count("|")}
    outside = re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", text)
    assert "<script" not in outside
    assert "\x1b" not in text
    assert not re.search(r"^# (h|not a heading)", outside, re.MULTILINE)


def test_the_first_baseline_is_shown_first_then_what_is_fastest_most_often() -> None:
    def timed(name: str, case: str, time_us: float, *, delegate: str = "") -> Row:
        return replace(row(name, case, timing=timing(time_us, {"cudnn": 9.0} if name != "cudnn" else {})), delegate=delegate)

    one, two, three = CASES[:3]
    rows = [timed("cudnn", case, 9.0) for case in (one, two, three)]
    rows += [timed("a_peer", case, 5.0) for case in (one, two, three)]
    rows += [timed("scan_gpu", one, 2.0), timed("persistent_gpu", two, 3.0), timed("persistent_gpu", three, 4.0)]
    rows += [timed("auto", case, 1.0, delegate="persistent_gpu") for case in (one, two, three)]
    rows += [replace(timed("wrong", one, 0.5), status="failed"), row("sequential", one, timing=timing(99.0, {}))]
    names = ["cudnn", "persistent_gpu", "scan_gpu", "a_peer", "auto", "sequential", "wrong"]
    assert standing.implementations(rows) == names
    assert [rows[0].implementation for rows in standing.by_case(standing.in_order(rows)).values()] == ["cudnn"] * 3


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in (ROOT / "reports").glob("*/report.json")))
def test_a_committed_report_is_what_is_rendered(folder: str, tmp_path: Path) -> None:
    committed = ROOT / "reports" / folder
    report = pytest_ecornn.load_report(committed)
    reporting.write_reports(tmp_path, report.run, report.rows)
    for name in ("summary.svg", "report.html", "report.md"):
        written, rendered = ((path / name).read_text().splitlines() for path in (committed, tmp_path))
        if name == "report.md":  # whose prose may be written anew
            written, rendered = ([line for line in lines if line.startswith(("#", "|"))] for lines in (written, rendered))
        assert rendered == written, "run make docs"


def test_a_code_block_cannot_be_left() -> None:
    assert markdown_syntax.code_block("a\n````\nb").splitlines() == ["`````text", "a", "````", "b", "`````"]


@pytest.mark.parametrize("name", ["a|b", "a\\|b", "a`b|", "<b>&amp;", "_x_ *y* ~z~ [l](u)", "$x$"])
def test_escaped_text_is_read_as_it_is(name: str) -> None:
    escaped = markdown_syntax.escape(name)
    assert not re.search(r"[|<>`]", escaped)
    assert html.unescape(re.sub(r"\\(.)", r"\1", escaped)) == name


# The terminal.


def shown(rows: list[Row], width: int = 120) -> str:
    return printed(rows_table(rows, reporting.unproven(rows)), width)


def test_summary_fits_80_columns_with_every_figure_whole() -> None:
    text = shown(sample_rows(), 80)
    assert re.search(r"scan_cpu +7\.41 ms +1\.074 \[1\.052, 1\.095\] +slower +0\.41 +2\.7 %", text)
    assert max(map(len, text.splitlines())) <= 80


def test_a_control_is_the_noise_floor_and_no_row_of_a_table() -> None:
    control = row("torch_cpu", CASES[0], "control", timing=timing(6_900.0, {"torch_cpu": 6_900.0}, 1))
    rows = [*sample_rows(), control]
    lines = concluded(rows).counts
    assert [line for line in lines if line.startswith("noise floor: torch_cpu against itself on lstm-")]
    counts = lines[0].partition("; ")[2]
    assert counts == concluded(sample_rows()).counts[0].partition("; ")[2]
    text, without = (markdown.render(sample_run(), concluded(one)) for one in (rows, sample_rows()))
    assert text.count("noise floor") == 1
    assert tables(text) == tables(without)


def test_a_control_whose_second_build_was_not_captured_has_no_device_only_noise() -> None:
    control = row("torch_cpu", CASES[0], "control", timing=timing(10.0, {"torch_cpu": 10.0}), replay=timing(9.0, {}))
    (line,) = Conclusions.of_rows([control], {}, "pytest").counts[1:]
    assert line.startswith("noise floor: torch_cpu against itself on lstm-")
    assert "device only" not in line


def test_summary_counts_rows_and_verdicts() -> None:
    lines = concluded(sample_rows(), {UNPROVEN}).counts
    assert lines[0] == (
        "26 rows: 17 passed, 1 unproven, 2 failed, 6 skipped; 5 faster, 4 slower (against torch_cpu or sequential)"
    )
    assert lines[1].startswith("unproven: blocked_cpu mingru float32 cpu: ")


def progress_of(rows: list[Row], begun: int, count: int, out: io.StringIO, folds: bool = False) -> list[str]:
    """The lines on rows of a run, of which others were done before."""
    progress = Progress(out, folds=folds)
    for done, one in enumerate(rows, begun + 1):
        progress.row_done(one, done, count)
    progress.stop()
    progress.stop()
    return out.getvalue().splitlines()


def test_progress_is_a_line_a_row_where_there_is_no_terminal() -> None:
    lines = progress_of([sample_rows()[2], *hostile_rows()[1:4]], 2, 24, io.StringIO())
    assert lines[0] == f"[ 3/24] scan_cpu {CASES[0]} 7.41 ms, 1.074 [1.052, 1.095] x torch_cpu: slower"
    assert lines[1].startswith(f"[ 4/24] y {CASES[0]} failed: a|b<script>")
    assert len(lines) == 4
    assert "\x1b" not in "".join(lines)


def test_rows_that_are_only_verified_share_lines_and_none_is_lost() -> None:
    verified = [drawn(name, "lstm") for name in ("a", "b", "c")] * 4
    lines = progress_of([*verified, sample_rows()[2], drawn("d", "gru")], 0, 14, io.StringIO(), folds=True)
    assert [line.partition(" 7.41")[0] for line in lines] == [
        "[10/14] verified: 10 rows, 600 examples: a, b, c",
        "[12/14] verified: 2 rows, 120 examples: b, c",
        f"[13/14] scan_cpu {CASES[0]}",
        "[14/14] verified: 1 row, 60 examples: d",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_a_bar_that_vanishes_and_keeps_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    progress_of(sample_rows()[19:22], 0, 3, out := Terminal())
    assert "2/3" in out.getvalue()
    assert "scan_wrong" in out.getvalue()
    assert out.getvalue().endswith("\x1b[2K")


def test_what_is_said_while_a_bar_is_drawn_stands_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    bar = Progress(terminal := Terminal())
    assert not bar.print_above("before the bar")
    bar.item_done("a row", "passed", 1, 2)
    written = len(terminal.getvalue())
    assert bar.print_above("waiting")
    bar.stop()
    _, line, below = terminal.getvalue()[written:].partition("waiting\n")
    assert (line, "a row" in below) == ("waiting\n", True)


# A GPU's two columns.


# What pytest says of a run beside it, and where the report lies.
FRAME_LINES = 13


def test_a_gpu_run_says_what_matters_in_60_lines() -> None:
    """Fifteen cases by six implementations: the answers, then a line for each cause of a doubt and each kind of remark."""
    rows, out = gpu_smoke_rows(), page.Page("utf-8")
    settings = {"intervals": "95% of a time, 0.9997 of a ratio", "budget": "2 s a row", "fewest pairs": 5}
    print_summary(Console(file=out, width=page.PLAIN_WIDTH), Conclusions.of_rows(rows, settings))
    lines = out.getvalue().splitlines()
    assert len(lines) + FRAME_LINES <= 60
    assert sum(line.startswith("  device only") for line in lines) == 15
    causes = ("alone after the candidate's row", "in its own row", "alone before the candidate was built")
    assert [line for line in lines if line.startswith("undecided: ")] == [
        f"undecided: {count} verdicts on 5 cases: a baseline took another time {cause} than beside the candidate"
        for count, cause in zip((20, 20, 10), causes, strict=True)
    ]
    for remark in ("noise floor: ", "confidence of intervals: ", "boundary sizes ", "disturbed: "):
        assert sum(line.startswith(remark) for line in lines) == 1
    remarks = lines[next(number for number, line in enumerate(lines) if line.startswith("15 cases: ")) :]
    assert len(set(remarks)) == len(remarks)


def test_reports_have_answers_then_doubts_by_cause_then_details(tmp_path: Path) -> None:
    rows = gpu_smoke_rows()
    reporting.write_reports(tmp_path, sample_run(), rows)
    text, html = (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()
    parts = (
        "| Case | Measured | Fastest |",
        "How sure this is:",
        "## What is undecided, and why",
        "## How to read it",
        "## lstm, inference",
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert all(text.count(part) == 1 for part in parts[1:])
    doubted = [line for line in text.splitlines() if "times as long" in line]
    assert len(doubted) == 25  # one of each row, though both of its columns are in doubt
    assert len(set(doubted)) == 25
    parts = ('id="speeds"', 'id="certainty"', 'id="undecided"', 'id="skipped"', 'id="run"')
    places = [html.index(part) for part in parts]
    assert places == sorted(places)
    assert html.count("<summary>20 verdicts on 5 cases") == 2


def test_a_case_is_undecided_for_what_its_verdicts_leave_open() -> None:
    """Wide intervals, others on the machine, equal times; not for two that are both faster than the baseline."""
    case = CASES[0]
    base, equal, wide, busy = (
        row(name, case, timing=timing(100.0, {} if name == "base" else {"base": 100.0}))
        for name in ("base", "equal", "wide", "busy")
    )
    for one in (wide, busy):
        assert one.timing is not None
        one.timing.against[0].verdict = "unclear"
    assert busy.timing is not None
    busy.timing.disturbance = BUSY
    busy.timing.against[0].add_doubts([Doubt("after", 0.5, 0.1, 9.0)], 0.03)
    groups = undecided.by_cause([base, wide, busy], set(), answers([base, wide, busy], set()))
    assert [group.line for group in groups] == [
        "1 verdict on 1 case: intervals too wide to tell; a larger --ecornn-budget narrows them",
        "1 verdict on 1 case: others used the machine meanwhile",
    ]
    (group,) = undecided.by_cause([base, equal], set(), answers([base, equal], set()))
    assert group.line == "1 case: two took the same time, as far as the clock can tell"
    fast = [row(name, case, timing=timing(50.0, {"base": 100.0}, seed)) for seed, name in enumerate(("one", "other"))]
    tied = answers([base, *fast], set())
    assert undecided.by_cause([base, *fast], set(), tied) == []
    assert answer_table.counts_line(tied) == "1 case: 1 with several ahead of the baseline"
    assert undecided.by_cause([base, fast[0]], set(), answers([base, fast[0]], set())) == []


def test_what_many_implementations_do_not_support_is_one_line_of_progress() -> None:
    few, many = io.StringIO(), io.StringIO()
    for out, count in ((few, 3), (many, 9)):
        progress = Progress(out)
        for number in range(count):
            progress.unsupported(f"mine{number}: 2 of 4 rows unsupported: no such cell", number + 1, count)
        progress.stop()
    assert few.getvalue().splitlines()[2] == "[3/3] mine2: 2 of 4 rows unsupported: no such cell"
    assert len(few.getvalue().splitlines()) == 3
    (line,) = many.getvalue().splitlines()
    assert line.startswith("[9/9] rows unsupported, as report.md says: mine0: 2 of 4, mine1: 2 of 4, ")


def gpu_rows() -> list[Row]:
    """fast is faster as called and slower device only; lone has no graph."""
    case = CASES[0] + "-cuda"
    sensors = {"sm_mhz": [1740.0, 1755.0, 1980.0], "power_w": [398.0, 412.0, 420.0], "temperature_c": [52.0, 54.0, 55.0]}
    rows = []
    for name, called, replayed in (("base", 100.0, 20.0), ("fast", 80.0, 30.0), ("lone", 900.0, None)):
        against = name != "base"
        one = row(name, case, timing=timing(called, {"base": 100.0} if against else {}), notes="no graph")
        assert one.timing is not None
        one.timing.host_us, one.timing.sensors = 61.0, {**sensors, "throttled": ["power cap"]}
        one.replay = timing(replayed, {"base": 20.0} if against else {}) if replayed else None
        rows.append(one)
    return rows


def test_both_columns_are_shown_with_ratios_of_their_own(tmp_path: Path) -> None:
    reporting.write_reports(tmp_path, sample_run(), gpu_rows())
    text = (tmp_path / "report.md").read_text()
    assert "| Case | base | base, device only | fast | fast, device only | lone |" in text
    fast = "**80.0 us**, 0.80 [0.78, 0.82] faster | 30.0 us, 1.50 [1.47, 1.53] slower"
    assert f"| {CASES[0]}-cuda | 100 us, baseline | **20.0 us**, baseline | {fast} | 900 us, 9.00 [" in text
    assert "| 61.0 us | 1755 [1740, 1980] MHz, 412 [398, 420] W, 54 [52, 55] °C, power cap | no graph |" in text
    assert "- **Device only** is" in text
    line = next(one for one in csv_of(tmp_path) if one["implementation"] == "fast")
    assert (line["verdict"], line["replay_verdict"]) == ("faster", "slower")
    assert (line["time_us"], line["replay_time_us"], line["replay_ratio"], line["host_us"]) == ("80.0", "30.0", "1.5", "61.0")
    benchmarks = json.loads((tmp_path / "benchmark.json").read_text())["benchmarks"]
    assert [one["name"] for one in benchmarks if one["group"] == f"{CASES[0]}-cuda, device only"] == ["base", "fast"]
    assert reporting.read_report(tmp_path / "report.json")[1] == gpu_rows()


def test_rounds_of_a_throttled_gpu_are_told() -> None:
    rows = gpu_rows()
    for one, rounds in zip(rows, ({"repeated_rounds": 1}, {"repeated_rounds": 3, "throttled_rounds": 8}), strict=False):
        assert one.timing
        assert one.timing.sensors
        one.timing.sensors |= rounds
    text = markdown.render(sample_run(), concluded(rows))
    assert "°C, power cap, 1 round measured again | no graph |" in text
    assert "°C, power cap, 3 rounds measured again, 8 rounds throttled all the same | no graph |" in text
    line = "throttled: in rounds of 1 of 5 times the GPU had slowed down"
    assert line in concluded(rows).counts
    assert line in text
    assert line not in concluded(gpu_rows()).counts


def test_the_terminal_shows_device_only_times_below_and_counts_them_apart() -> None:
    text = shown(gpu_rows(), 80)
    assert re.search(r"fast +80\.0 us +0\.80 \[0\.78, 0\.82\] +faster .*\n +device only +30\.0 us +1\.50 \[.*slower", text)
    assert max(map(len, text.splitlines())) <= 80
    (line,) = concluded(gpu_rows()).counts
    assert line == "3 rows: 3 passed; 1 faster, 1 slower (against base); device only: 1 slower"
    (line,) = progress_of(gpu_rows()[1:2], 0, 3, io.StringIO())
    assert "80.0 us, 0.80 [0.78, 0.82] x base: faster; device only 30.0 us, 1.50 [1.47, 1.53] x base: slower" in line


def test_reports_of_a_cpu_say_nothing_of_a_gpus_columns(written: Path) -> None:
    for name in ("report.md", "summary.svg", "benchmark.json"):
        assert "evice only" not in (written / name).read_text()


def test_rows_written_before_there_were_two_columns_are_read() -> None:
    data = json.loads(json_report.render(sample_run(), sample_rows(), set()))
    for one in data["rows"]:
        del one["replay"]
        for name in ("host_us", "sensors"):
            (one["timing"] or {}).pop(name, None)
    assert read_text(json.dumps(data))[1] == sample_rows()


# Numbers.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (formatting.duration(0.1234), "0.123 us"),
        (formatting.duration(999.6), "1.00 ms"),
        (formatting.duration(7412.0), "7.41 ms"),
        (formatting.duration(1.5e9), "1,500 s"),
        (formatting.duration(NAN), "nan us"),
        (formatting.duration_interval(7412.0, 7398.0, 10_440.0), "7.41 ms [7.40, 10.44]"),
        (formatting.ratio_interval(0.31, 0.304, 0.32), "0.31 [0.30, 0.32]"),
        (formatting.ratio_interval(0.85, 0.7, 0.998), "0.850 [0.700, 0.998]"),
        (formatting.ratio_interval(0.00312, 0.003, 0.0033), "0.0031 [0.0030, 0.0033]"),
        (formatting.ratio_interval(41.2, 40.9, 41.6), "41.2 [40.9, 41.6]"),
        (formatting.ratio_interval(NAN, NAN, INF), "nan [nan, inf]"),
        (formatting.ratio_interval(63.1, 0.01, 3.1e38), "63.1 [0.0, >1,000]"),
        (formatting.ratio_interval(2000.0, 1900.0, 2100.0), "2,000 [1,900, 2,100]"),
        (formatting.percent(0.4217), "42 %"),
        (formatting.percent(1.0), "100 %"),
        (formatting.percent(0.0), "0 %"),
        (formatting.size(1_572_864), "1.50 MiB"),
        (formatting.size(17), "17 B"),
        (formatting.significant(9.996), "10.0"),
        (formatting.significant(INF), "inf"),
        (formatting.one_line("a\r\nb\x00\tc"), "a b\\x00 c"),
    ],
)
def test_numbers_have_three_digits_and_a_unit_that_fits(text: str, expected: str) -> None:
    assert text == expected


def test_the_report_names_the_rows_that_more_budget_would_decide_and_the_command() -> None:
    rows = [row(name, case, timing=timing(90.0, {"base": 100.0})) for name in ("a", "b") for case in CASES[:2]]
    for found, (low, high) in zip(rows, ((0.85, 0.96), (0.80, 1.02), (0.88, 0.92), (0.5, 1.6)), strict=True):
        one = found.timing.against[0]  # type: ignore[union-attr]
        one.low, one.high, one.verdict = low, high, "faster" if high < 0.95 else "unclear"
    command = "pytest --ecornn-bench --ecornn-budget 4 --ecornn-cases smoke"
    run = replace(sample_run(), settings={"budget": "4 s a row"}, command=command)
    (line,) = Conclusions.of_run(run, rows).more_budget
    assert line == (
        "more budget would decide 2 rows: pytest --ecornn-bench --ecornn-cases smoke --ecornn-budget 19 "
        f"-k 'a-{CASES[0]} or a-{CASES[1]}'"
    )
    assert "more budget would decide 2 rows" in markdown.render(run, Conclusions.of_run(run, rows))
    assert Conclusions.of_run(run, rows[2:]).more_budget == []
