"""Measures one problem: the first call of `auto`, then all backends and `auto`, apart from the times that decided."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch

from pytest_ecornn.autotune import Decision, selection, store
from pytest_ecornn.results.statistics import Ratio, median_interval, paired_ratio
from pytest_ecornn.suites.published.common.alternating import Replay
from pytest_ecornn.suites.published.common.wall_clock import Calls, sample
from pytest_ecornn.suites.published.selection_parts.modules import AUTO, backends, make_call, make_module, precision_set
from pytest_ecornn.suites.published.selection_parts.problems import SelectionProblem
from pytest_ecornn.system.error_line import first_line

_BLOCK_US = 2500.0
ROUNDS = 9


@dataclass(frozen=True)
class Column:
    """Times of one way of timing, in us: (median, low, high) by backend; the choice, and ratios that are over 1 where it wins.

    over_baseline: the baseline's time over auto's. over_best: the fastest backend's time over auto's; under 1 is regret.
    """

    choice: str
    times_us: dict[str, tuple[float, float, float]]
    over_baseline: Ratio
    over_best: Ratio
    best: str


@dataclass(frozen=True)
class SelectionRow:
    """One problem. replayed: None where there are no CUDA graphs. refusals: why backends have no time.

    decision_ms: of timing alone. compile_ms: of first calls. first_call_ms: of the whole first call. notes: auto's.
    peak_over_winner: peak memory of the first call over that of a later one.
    """

    problem: SelectionProblem
    called: Column | None = None
    replayed: Column | None = None
    refusals: dict[str, str] = field(default_factory=dict)
    decision_ms: float = 0.0
    compile_ms: float = 0.0
    first_call_ms: float = 0.0
    peak_over_winner: float = 0.0
    notes: str = ""


def run_once(problem: SelectionProblem, device: torch.device) -> None:
    """Runs every backend once, so that its kernels are compiled and stored."""
    with precision_set(problem), patch.object(store, "read", return_value=None), patch.object(store, "write"):
        for backend in backends(problem, device):
            try:
                make_call(problem, make_module(problem, backend, device), device)()
            except (ValueError, torch.OutOfMemoryError):
                continue
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(problem: SelectionProblem, device: torch.device, confidence: float, rounds: int = ROUNDS) -> SelectionRow:
    """The row of a problem, whose decision is made anew."""
    selection.forget()
    with precision_set(problem), patch.object(store, "read", return_value=None), patch.object(store, "write"):
        auto = make_module(problem, AUTO, device)
        call = make_call(problem, auto, device)
        first_call_ms, first_peak = _first_call(call, device)
        _, later_peak = _first_call(call, device)
        notes: str = auto.notes()  # type: ignore[operator]
        decision = _decision()
        calls: dict[str, Callable[[], Any]] = {}
        refusals: dict[str, str] = {}
        for backend in backends(problem, device):
            try:
                calls[backend] = make_call(problem, make_module(problem, backend, device), device)
                calls[backend]()
            except (ValueError, torch.OutOfMemoryError) as error:
                calls.pop(backend, None)
                refusals[backend] = first_line(error) or type(error).__name__
        calls[AUTO] = call
        called = _column(calls, device, confidence, rounds, _name(decision.called if decision else _ran(notes)))
        replayed = None
        if device.type == "cuda":
            graphs = {name: Replay(one) for name, one in calls.items()}
            captured = _name(decision.device if decision else _ran(notes))
            replayed = _column(graphs, device, confidence, rounds, captured)
    return SelectionRow(
        problem, called, replayed, refusals, decision.probe_ms if decision else 0.0, decision.compile_ms if decision else 0.0,
        first_call_ms, first_peak / max(1, later_peak), notes,
    )  # fmt: skip


def _decision() -> Decision | None:
    return next(iter(selection.decisions().values()), None)


def _ran(notes: str) -> str:
    return notes.partition(";")[0].partition(":")[0]


def _name(backend: str) -> str:
    return {"torch": "torch.nn", "sequential": "loop"}.get(backend, backend)


def _first_call(call: Callable[[], Any], device: torch.device) -> tuple[float, int]:
    """Its ms, and the peak of memory in bytes that torch had given out on a CUDA device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    call()
    if device.type != "cuda":
        return (time.perf_counter() - start) * 1e3, 0
    torch.cuda.synchronize(device)
    return (time.perf_counter() - start) * 1e3, torch.cuda.max_memory_allocated(device)


def _column(calls: Calls, device: torch.device, confidence: float, rounds: int, choice: str) -> Column:
    samples = sample(calls, device, rounds, _BLOCK_US)
    times_us = {name: median_interval(of_name) for name, of_name in samples.items()}
    others = [name for name in calls if name != AUTO]
    best = min(others, key=lambda name: times_us[name][0])
    over = {name: paired_ratio(samples[name], samples[AUTO], confidence) for name in (others[0], best)}
    return Column(choice, times_us, over[others[0]], over[best], best)
