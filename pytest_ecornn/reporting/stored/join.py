"""Unites reports that runs of one set-up on machines of one kind have made apart, such as those of all shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_ecornn.reporting import standing
from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.reporting.json_report import read_report
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.run_info import RunInfo
from pytest_ecornn.results.shard import Shard, parse_shard
from pytest_ecornn.system import machine

_SHARD = "shard"  # among a run's settings


def join(paths: Sequence[Path]) -> tuple[RunInfo, list[Row]]:
    """One report's run and rows, those of the first file first. paths: of report.json files.

    Raises ReportError, in one line, for a file that cannot be read, one of another set-up or kind of machine, and a row with
    other figures in two of them.
    """
    reports = {path: read_report(path) for path in paths}
    first = paths[0]
    run, _ = reports[first]
    for path in paths:
        _check_alike(path, reports[path][0], first, run)
    joined = _joined_rows({path: rows for path, (_, rows) in reports.items()})
    runs = [run for run, _ in reports.values()]
    united = replace(
        run,
        started=min(one.started for one in runs),
        seconds=sum(one.seconds for one in runs),
        command="; ".join(dict.fromkeys(one.command for one in runs)),
        ceilings=_highest([one.ceilings for one in runs]),
        settings=_settings(runs),
        refused=standing.refused(joined),
        score=max((one.score for one in runs if one.score), key=lambda score: score.taken, default=None),
        skipped=standing.skipped(joined),
    )
    return united, joined


def missing_shards(run: RunInfo) -> list[str]:
    """Shards that a run lacks; none of one that is no shard. Raises ValueError where its settings name none that can be."""
    given = set(_shards(run))
    counts = sorted({shard.count for shard in given})
    needed = (Shard(number, count) for count in counts for number in range(1, count + 1))
    return [str(shard) for shard in needed if shard not in given]


def _shards(run: RunInfo) -> list[Shard]:
    """The shards that a run, or several joined, has."""
    text = run.settings.get(_SHARD)
    return [] if text is None else [parse_shard(one) for one in str(text).split(", ")]


def _check_alike(path: Path, run: RunInfo, first: Path, other: RunInfo) -> None:
    """Raises ReportError where times of two runs may not stand in one table, or a shard is none."""
    try:
        missing_shards(run)
    except ValueError as error:
        raise ReportError(f"{path}: run.settings.{_SHARD}: {error}") from None
    different = machine.same_machine(other.machine, run.machine)
    settings, wanted = _but_shard(run.settings), _but_shard(other.settings)
    names = dict.fromkeys((*wanted, *settings))
    different += [
        f"{name}: {wanted.get(name)} and {settings.get(name)}" for name in names if wanted.get(name) != settings.get(name)
    ]
    if different:
        raise ReportError(f"{path} cannot be joined with {first}: expected the same and got {'; '.join(different)}")


def _but_shard(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != _SHARD}


def _settings(runs: Sequence[RunInfo]) -> dict[str, Any]:
    """Returns the settings that all share; with the shards, unless these are all."""
    united = replace(runs[0], settings=_but_shard(runs[0].settings))
    if shards := list(dict.fromkeys(shard for run in runs for shard in _shards(run))):
        united.settings[_SHARD] = ", ".join(map(str, shards))
    return united.settings if missing_shards(united) else _but_shard(united.settings)


def _joined_rows(of_files: Mapping[Path, Sequence[Row]]) -> list[Row]:
    """Each row once. Each run has controls of its own, of which the furthest from 1 stands for all."""
    found: dict[tuple[str, str, str], tuple[Path, Row]] = {}
    for path, rows in of_files.items():
        for row in rows:
            before = found.setdefault(row.key, (path, row))
            if before[1] == row:
                continue
            if row.kind != "control":
                raise ReportError(f"{path}: {' '.join(row.key)} has other figures than in {before[0]}")
            if _deviation(row) > _deviation(before[1]):
                found[row.key] = path, row
    return [row for _, row in found.values()]


def _deviation(row: Row) -> float:
    """How far a control's ratios are from 1: by failing, endlessly."""
    if row.status == "failed":
        return float("inf")
    timings = (timing for timing in (row.timing, row.replay) if timing is not None)
    return max((abs(one.ratio - 1) for timing in timings for one in timing.against), default=0.0)


def _highest(ceilings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each rate's highest of several measurements; a disturbance only lowers them."""
    found: dict[str, Any] = {}
    for one in ceilings:
        for name, value in one.items():
            other = found.get(name)
            if isinstance(value, Mapping):
                found[name] = _highest([other or {}, value])
            else:
                found[name] = value if other is None else max(other, value)
    return found
