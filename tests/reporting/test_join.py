"""Reports that are joined: all rows once, and nothing that was made otherwise or elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.__main__ import main
from pytest_ecornn.reporting import RunInfo, read_report, standing, write_reports
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.shard import Shard
from tests.helpers.reporting.outputs import Said
from tests.helpers.reporting_samples import CASES, row, sample_rows, sample_run, timing

SHARDS = 3


def shard_run(number: int, **changes: Any) -> RunInfo:
    run = sample_run()
    run.settings["shard"] = f"{number}/{SHARDS}"
    return replace(run, **changes)


def control(ratio: float) -> Row:
    return row("torch_cpu", CASES[0], kind="control", timing=timing(ratio * 6_900, {"torch_cpu": 6_900}))


def written(folder: Path, run: RunInfo, rows: list[Row]) -> Path:
    write_reports(folder, run, rows)
    return folder


def shards(folder: Path) -> list[Path]:
    """A report of each shard of the sample's rows."""
    found = []
    for number in range(1, SHARDS + 1):
        own = [one for one in sample_rows() if Shard(number, SHARDS).has(f"{one.implementation}-{one.case}")]
        found.append(written(folder / str(number), shard_run(number), own))
    return found


def joined(folder: Path, reports: list[Path]) -> tuple[RunInfo, list[Row]]:
    assert main(["join", *map(str, reports), "--output", str(folder / "joined")]) == 0
    return read_report(folder / "joined/report.json")


def test_all_shards_are_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, rows = joined(tmp_path, shards(tmp_path))
    written(tmp_path / "whole", sample_run(), sample_rows())
    _, whole = read_report(tmp_path / "whole/report.json")
    assert {one.key: one for one in rows} == {one.key: one for one in whole}
    assert any(one.status == "unproven" for one in rows)  # by a failed row of another shard
    assert run.settings == sample_run().settings
    assert run.seconds == SHARDS * sample_run().seconds
    assert run.refused == standing.refused(whole)
    assert capsys.readouterr().err == ""
    assert (tmp_path / "joined/report.md").exists()


def test_a_missing_shard_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, _, third = shards(tmp_path)
    run, _ = joined(tmp_path, [first, third / "report.json"])
    assert run.settings["shard"] == "1/3, 3/3"
    assert capsys.readouterr().err == "no report of shard 2/3\n"


def test_what_was_joined_is_joined_with_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = shards(tmp_path)
    joined(tmp_path / "some", [first, third])
    capsys.readouterr()
    run, rows = joined(tmp_path, [tmp_path / "some/joined", second])
    assert run.settings == sample_run().settings
    assert {one.key for one in rows} == {one.key for one in sample_rows()}
    assert capsys.readouterr().err == ""


def test_a_shard_that_is_none_is_refused(tmp_path: Path, said: Said) -> None:
    run = shard_run(1)
    run.settings["shard"] = "first"
    report = written(tmp_path / "a", run, [])
    message = f"{report}/report.json: run.settings.shard: expected I/N, I from 1 to N, got first\n"
    assert said("join", report, "--output", tmp_path / "joined", status=1) == message


def test_the_control_furthest_from_one_stands_for_all(tmp_path: Path) -> None:
    ratios = (1.01, 0.9, 1.05)
    reports = [written(tmp_path / str(n), shard_run(n + 1), [control(ratio)]) for n, ratio in enumerate(ratios)]
    _, (found,) = joined(tmp_path, reports)
    assert found == control(0.9)


def test_the_highest_ceilings_stand(tmp_path: Path) -> None:
    low, high = ({"copy_points": {"32768": rate}, "matmul_gflop_per_s": {"float32": 200 - rate}} for rate in (90.0, 110.0))
    reports = [written(tmp_path / str(n), shard_run(n, ceilings=one), []) for n, one in ((1, low), (2, high))]
    assert joined(tmp_path, reports)[0].ceilings == {"copy_points": {"32768": 110.0}, "matmul_gflop_per_s": {"float32": 110.0}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: run.machine.update(cpu="another"), "cpu: AMD EPYC 9354 32-Core Processor and another"),
        (lambda run: run.machine.update(commit="fedcba9"), "commit: 0123abc and fedcba9"),
        (lambda run: run.settings.update(budget="9 s a row"), "budget: 2 s a row and 9 s a row"),
        (lambda run: run.settings.update(seed=7), "seed: None and 7"),
    ],
)
def test_what_was_made_otherwise_is_refused(
    change: Callable[[RunInfo], None], message: str, tmp_path: Path, said: Said
) -> None:
    other = shard_run(2)
    change(other)
    reports = [written(tmp_path / "a", shard_run(1), []), written(tmp_path / "b", other, [])]
    expected = f"{tmp_path}/b/report.json cannot be joined with {tmp_path}/a/report.json: expected the same and got {message}\n"
    assert said("join", *reports, "--output", tmp_path / "joined", status=1) == expected
    assert not (tmp_path / "joined").exists()


def test_a_row_of_two_figures_is_refused(tmp_path: Path, said: Said) -> None:
    rows = [row("scan_cpu", CASES[0], timing=timing(time_us, {})) for time_us in (100.0, 200.0)]
    reports = [written(tmp_path / str(n), shard_run(n + 1), [one]) for n, one in enumerate(rows)]
    message = f"benchmark scan_cpu {CASES[0]} has other figures than in {tmp_path}/0/report.json"
    assert message in said("join", *reports, "--output", tmp_path / "joined", status=1)


def test_a_file_that_is_no_report_is_named(tmp_path: Path, said: Said) -> None:
    (tmp_path / "report.json").write_text("[]")
    message = f"{tmp_path}/report.json, line 1: expected an object with schema_version"
    assert message in said("join", tmp_path, "--output", tmp_path / "joined", status=1)
    with pytest.raises(SystemExit):
        main([])
