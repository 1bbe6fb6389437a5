"""Clocks: how the time of a block of calls is taken. A device whose work runs on after the call returns has its own.

They are read by functions that were fetched when this module was imported: what takes their names later is not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from time import perf_counter
from typing import Any, Protocol

import torch
from pytest_benchmark.fixture import BenchmarkFixture

_Event: Any = torch.cuda.Event
_synchronize = torch.cuda.synchronize
_record, _wait, _elapsed_ms = _Event.record, _Event.synchronize, _Event.elapsed_time


class Clock(Protocol):
    """name: as reports print it. smallest_difference: the relative difference under which two times are called the same."""

    name: str
    smallest_difference: float

    def time(self, calls: Sequence[Callable[[], Any]]) -> float:
        """Seconds that the calls take, one after the other, their work finished."""

    def host_us(self, calls: Sequence[Callable[[], Any]]) -> float | None:
        """The median time for a call to return, its work unfinished; None where calls return finished."""


class CpuClock:
    """Wall-clock time of calls that have finished when they return."""

    name = "wall clock"
    smallest_difference = 0.05

    def time(self, calls: Sequence[Callable[[], Any]]) -> float:
        start = perf_counter()
        for call in calls:
            call()
        return perf_counter() - start

    def host_us(self, calls: Sequence[Callable[[], Any]]) -> None:
        return None


class CudaClock:
    """A GPU's time between two events around the calls, as called: where it waits for the host to launch, that counts too.

    It is waited for before the first event, lest earlier work be timed, and before the second, so that work which a call put
    on another stream is. The events are fresh: an elapsed time since a far-away one has no resolution left.
    """

    name = "CUDA events"
    smallest_difference = 0.05  # launches are as unsteady as the host is

    def __init__(self, device: str):
        self._device = device

    def time(self, calls: Sequence[Callable[[], Any]]) -> float:
        with torch.cuda.device(self._device):
            start, end = (_Event(enable_timing=True) for _ in range(2))
            _synchronize()
            _record(end)  # an event is made when it is first recorded, which is not to be timed
            _record(start)
            for call in calls:
                call()
            _synchronize()
            _record(end)
            _wait(end)
            return float(_elapsed_ms(start, end)) * 1e-3

    def host_us(self, calls: Sequence[Callable[[], Any]]) -> float:
        taken = []
        for call in calls:
            _synchronize(self._device)
            start = perf_counter()
            call()
            taken.append(perf_counter() - start)
        _synchronize(self._device)
        return median(taken) * 1e6


class GraphClock(CudaClock):
    """For replays of CUDA graphs, which the device runs without the host: a smaller difference can be told."""

    name = "CUDA events, graph replay"
    smallest_difference = 0.015


def for_device(device: str) -> Clock:
    """The clock of calls as a program makes them."""
    return CudaClock(device) if device.startswith("cuda") else CpuClock()


def smallest_differences(devices: Iterable[str]) -> str:
    """What counts on such devices, in words."""
    has_gpu = any(device.startswith("cuda") for device in devices)
    as_called = f"{CudaClock.smallest_difference if has_gpu else CpuClock.smallest_difference:.0%}"
    return f"{as_called}, device only {GraphClock.smallest_difference:.1%}" if has_gpu else as_called


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
