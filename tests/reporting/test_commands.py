"""`python -m pytest_ecornn show` and `compare`: what a stored report says, and what got slower between two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ecornn.__main__ import main
from pytest_ecornn.reporting import RunInfo, write_reports
from pytest_ecornn.results.rows import Row
from tests.helpers.reporting.outputs import Said
from tests.helpers.reporting_samples import CASES, row, sample_rows, sample_run, timing

BASE_US = 6_900.0


def written(folder: Path, time_us: float, change: Callable[[RunInfo], object] = lambda run: None) -> str:
    """A report of one implementation, which takes so long, and its baseline."""
    run = sample_run()
    change(run)
    rows: list[Row] = [
        row("torch_cpu", CASES[0], timing=timing(BASE_US, {})),
        row("scan_cpu", CASES[0], timing=timing(time_us, {"torch_cpu": BASE_US})),
    ]
    write_reports(folder, run, rows)
    return str(folder)


def test_show_prints_the_answers(tmp_path: Path, said: Said) -> None:
    write_reports(tmp_path, sample_run(), sample_rows())
    shown = said("show", tmp_path)
    assert "scan_cpu" in shown
    assert "lstm-T35-B32-H200-L2-float32" in shown


def test_show_puts_machines_side_by_side(tmp_path: Path, said: Said) -> None:
    def on(gpu: str) -> Callable[[RunInfo], object]:
        return lambda run: run.machine.update(gpu={"names": [gpu]})

    fast, slow = written(tmp_path / "fast", 1_000.0, on("H200")), written(tmp_path / "slow", 9_000.0, on("H100"))
    shown = said("show", fast, slow)
    (header,) = (line for line in shown.splitlines() if line.startswith("case"))
    assert header.split() == ["case", "H200", "H100"]
    (line,) = (line for line in shown.splitlines() if line.startswith(CASES[0]))
    assert line.split()[1:] == ["scan_cpu", "1.00", "ms", "torch_cpu", "6.90", "ms"]
    assert f"H100: {slow}, " in shown
    assert "9.0" not in shown  # neither the slower implementation, nor a ratio of two machines


def test_reports_of_one_machine_are_told_apart_by_their_start(tmp_path: Path, said: Said) -> None:
    def started(text: str) -> Callable[[RunInfo], object]:
        return lambda run: setattr(run, "started", text)

    days = "2026-01-01T00:00:00", "2026-01-02T00:00:00"
    shown = said("show", *(written(tmp_path / day, 1_000.0, started(day)) for day in days))
    assert all(f", {day}" in shown for day in days)


def test_a_case_that_one_report_lacks_has_a_dash(tmp_path: Path, said: Said) -> None:
    write_reports(tmp_path / "other", sample_run(), [row("torch_cpu", CASES[1], timing=timing(BASE_US, {}))])
    shown = said("show", written(tmp_path / "one", 1_000.0), tmp_path / "other")
    (line,) = (line for line in shown.splitlines() if line.startswith(CASES[1]))
    assert line.split()[1] == "-"


def test_schema_prints_the_committed_schema(said: Said) -> None:
    committed = (Path(__file__).parents[2] / "docs/report.schema.json").read_text()
    assert said("schema") == committed, "run python -m pytest_ecornn schema > docs/report.schema.json"


def test_compare_passes_what_is_as_fast(tmp_path: Path, said: Said) -> None:
    old, new = written(tmp_path / "old", 3_000.0), written(tmp_path / "new", 2_900.0)
    assert f"compared with {old} of 2025-01-31" in said("compare", old, f"{new}/report.json")


def test_compare_fails_where_a_row_got_slower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = written(tmp_path / "old", 3_000.0), written(tmp_path / "new", 6_000.0)
    assert main(["compare", old, new]) == 1
    shown = capsys.readouterr().out
    assert "scan_cpu" in shown
    assert "gate failed: 1 slower than their limit" in shown
    assert main(["compare", old, new, "--fail-slower", "150%"]) == 0


def test_another_kind_of_machine_and_a_limit_that_is_none_are_refused(tmp_path: Path, said: Said) -> None:
    old = written(tmp_path / "old", 3_000.0)
    new = written(tmp_path / "new", 3_000.0, lambda run: run.machine.update(cores=64))
    refusal = f"{new}/report.json: is of another kind of machine than {old}/report.json (cores: 2 and 64)"
    assert refusal in said("compare", old, new, status=1)
    message = "--fail-slower: expected a percentage over 0, such as 5%"
    assert message in said("compare", old, old, "--fail-slower", "much", status=1)
