"""Clocks: how the time of a block of calls is taken. A device whose work runs on after the call returns has its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pytest_benchmark.fixture import BenchmarkFixture


class Clock(Protocol):
    """name: as reports print it. smallest_difference: the relative difference under which two times are called the same."""

    name: str
    smallest_difference: float

    def time(self, calls: Sequence[Callable[[], Any]]) -> float:
        """Seconds that the calls take, one after the other, their work finished."""


class CpuClock:
    """Wall-clock time of calls that have finished when they return."""

    name = "wall clock"
    smallest_difference = 0.05

    def time(self, calls: Sequence[Callable[[], Any]]) -> float:
        start = time.perf_counter()
        for call in calls:
            call()
        return time.perf_counter() - start


class ReplayClock:
    """A timer for pytest-benchmark that stands still until it is told how long the last round took.

    Samples are taken in alternating blocks, which pytest-benchmark cannot do; this hands them over by its public interface.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def replay(self, benchmark: BenchmarkFixture, samples_us: Sequence[float], group: str, extra: dict[str, Any]) -> None:
        """Gives `benchmark` one round for each sample; pytest-benchmark disabled (as under xdist) takes one and drops it."""
        remaining = iter(samples_us)

        def one_round() -> None:
            self._now += next(remaining) * 1e-6

        benchmark.group = group
        benchmark.extra_info.update(extra)
        benchmark.pedantic(one_round, rounds=len(samples_us))


replay_clock = ReplayClock()
