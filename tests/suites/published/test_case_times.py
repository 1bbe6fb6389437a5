"""Rows of verified times, measured here on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from pytest_ecornn.measurement.clocks import WallTimer
from pytest_ecornn.measurement.measurement import Arm
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common import case_times
from pytest_ecornn.suites.published.common.case_times import CALLED, NOT_CALLED, REPLAYED, TIMING_MODES, Cell, TimedComparison
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED, measure_each
from pytest_ecornn.system.gpus.lock import device_lock
from pytest_ecornn.system.locking import MachineLock
from pytest_ecornn.verification.verification import Candidate
from tests.helpers.studies import SMALL


def test_a_row_is_verified_and_timed_in_turns() -> None:
    (row,) = TimedComparison(("torch_cpu", "sequential", "cudnn"), ("sequential",)).rows([SMALL], float("inf"))
    called, replayed = row.cells[CALLED], row.cells[REPLAYED]
    assert list(called) == ["torch_cpu", "sequential", "cudnn"]
    assert called["torch_cpu"].time_us is not None
    assert list(called["torch_cpu"].over_it) == ["sequential"]
    assert called["sequential"].over_it["sequential"] == Ratio(1.0, 1.0, 1.0)
    assert called["cudnn"] == Cell("cuDNN runs on a CUDA device")
    assert {cell.reason for name, cell in replayed.items() if name != "cudnn"} == {"no CUDA graphs on a CPU"}
    assert case_times.timing_mode(row) == CALLED
    assert row.label == str(SMALL)


def test_calls_too_long_for_a_graph_are_timed_as_called(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = TimedComparison(("torch_cpu", "sequential"), ("sequential",), called=lambda case: False, times_long_calls=True)
    on_cuda = replace(SMALL, device="cuda")
    monkeypatch.setattr(comparison.__class__, "_timed", lambda self, arms, clock: self.cells({}, dict.fromkeys(arms, "timed")))
    monkeypatch.setattr(case_times.clocks, "for_device", lambda device: WallTimer())

    def reasons() -> dict[str, str]:
        candidate = Candidate.build("sequential", ReferenceLoop, SMALL)
        arms: dict[str, Arm | str] = {"sequential": Arm(candidate, InputPool(SMALL)), "torch_cpu": "does not run"}
        return {name: cell.reason for name, cell in comparison._called(on_cuda, arms).items()}

    assert reasons() == {"sequential": NOT_CALLED, "torch_cpu": "does not run"}
    monkeypatch.setattr(case_times, "MAX_CALL_SECONDS", 0.0)
    assert reasons() == {"sequential": "timed", "torch_cpu": "timed"}
    comparison = replace(comparison, times_long_calls=False)
    assert reasons()["sequential"] == NOT_CALLED


def test_the_timing_mode_is_graph_replay_unless_more_ran_as_called() -> None:
    timed, missing = Cell(time_us=(1.0, 1.0, 1.0)), Cell("a call takes 0.3 s")

    def mode(called: list[Cell], replayed: list[Cell]) -> str:
        cells = [dict(zip("ab", cells, strict=True)) for cells in (called, replayed)]
        return case_times.timing_mode(case_times.Row(SMALL, dict(zip(TIMING_MODES, cells, strict=True))))

    assert mode([timed, timed], [timed, timed]) == REPLAYED
    assert mode([Cell(NOT_CALLED), missing], [timed, missing]) == REPLAYED
    assert mode([timed, timed], [timed, missing]) == CALLED


def test_nobody_is_timed_where_the_one_that_is_needed_does_not_run() -> None:
    (row,) = TimedComparison(("sequential", "cudnn"), ("sequential",), needed="cudnn").rows([SMALL], float("inf"))
    assert row.cells[CALLED] == {
        "sequential": Cell("not timed, as cudnn was not"),
        "cudnn": Cell("cuDNN runs on a CUDA device"),
    }


class Lock(MachineLock):
    """Records how the lock was held, and what was done meanwhile."""

    events: ClassVar[list[str]] = []

    @contextmanager
    def _row(self, alone: bool) -> Iterator[None]:
        self.events.append("row" if alone else "shared")
        with super()._row(alone):
            yield

    @contextmanager
    def turn(self) -> Iterator[float]:
        self.events.append("turn")
        with super().turn() as waited:
            yield waited


def test_processes_share_a_device_to_verify_and_have_it_alone_to_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def noting(event: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: Lock.events.append(event) or function(*given, **named)

    monkeypatch.setattr(case_times, "device_lock", lambda device: Lock(tmp_path / device))
    monkeypatch.setattr(case_times, "prepared", noting("verified", case_times.prepared))
    monkeypatch.setattr(case_times.measurement, "measure", noting("timed", case_times.measurement.measure))
    comparison = TimedComparison(("torch_cpu", "auto"), ("torch_cpu",))
    assert [row.cells[CALLED]["auto"].reason for row in comparison.rows([SMALL], float("inf"))] == [""]
    assert Lock.events[:7] == ["shared", "verified", "row", "turn", "verified", "row", "timed"]
    assert len(Lock.events) > 20, "each block has a turn"
    assert {*Lock.events[7:]} == {"turn"}


def test_each_gpu_has_a_lock_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    uuids = {"cuda:0": "a", "cuda:1": "b", "cuda": "a"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuids[device]))
    paths = {device: device_lock(device).path for device in (*uuids, "cpu")}
    assert paths["cuda"] == paths["cuda:0"]
    assert len({*paths.values()}) == 3
    assert paths["cpu"] == MachineLock().path


def test_each_item_has_a_row_whatever_happens_to_it() -> None:
    makers: Any = (lambda item: f"{6 // item}", lambda item, why: f"{item}: {why}")
    zero = "0: ZeroDivisionError: integer division or modulo by zero"
    assert list(measure_each([3, 0, 2], float("inf"), *makers)) == ["2", zero, "3"]
    assert list(measure_each([3], 0.0, *makers)) == [f"3: {NOT_REACHED}"]
