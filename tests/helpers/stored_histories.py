"""Stored results of one machine over many runs, made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_ecornn.reporting import RunInfo, files, json_report, unproven
from pytest_ecornn.results.rows import Row, Timing
from tests.helpers.reporting_samples import CASES, row, sample_run, timing

RUNS = 20


def timed(time_us: float, base_us: float = 7_000.0) -> Timing:
    """A time with an interval of 0.4 % either way."""
    found = timing(time_us, {"torch_cpu": base_us})
    found.low_us, found.high_us = 0.996 * time_us, 1.004 * time_us
    return found


def write_history(
    machine: Path,
    times: Mapping[str, Sequence[float]],
    change: Callable[[int, RunInfo], object] = lambda number, run: None,
) -> None:
    """Writes a run for each time of the implementations, a day apart. change: what is other in a run, by its number."""
    count = max(map(len, times.values()))
    for number in range(count):
        run = sample_run()
        run.started = f"2026-{1 + number // 28:02}-{1 + number % 28:02}T12:00:00+00:00"
        run.machine["commit"] = f"{number:040x}"
        change(number, run)
        rows: list[Row] = [row("torch_cpu", CASES[0], timing=timing(7_000.0, {}))]
        rows += [row(name, CASES[0], timing=timed(each[number])) for name, each in times.items()]
        write_report(machine / f"{run.started[:10]}-{number:07x}", run, rows)


def write_report(folder: Path, run: RunInfo, rows: list[Row]) -> None:
    """Writes report.json, of all files of a run the one that is published."""
    files.write(folder / "report.json", json_report.render(run, rows, unproven(rows)))
