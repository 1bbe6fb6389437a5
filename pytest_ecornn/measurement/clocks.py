"""Clocks: how the time of a block of calls is taken. A device whose work runs on after the call returns has its own.

They are read by functions that were fetched when this module was imported, and are bound to the methods that call them: what
takes their names later, here or where they came from, is not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import torch
from pytest_benchmark.fixture import BenchmarkFixture

from pytest_ecornn.results.statistics import EQUIVALENCE_MARGINS
from pytest_ecornn.system import child_processes
from pytest_ecornn.verification.calls import WrongResult
from pytest_ecornn.verification.guards import ambient
from pytest_ecornn.verification.guards.setting import GlobalSetting, cannot_be_put_back


class _Device(NamedTuple):
    """The event type and the functions that time a GPU."""

    event: Any
    synchronize: Callable[..., None]
    now: Callable[[], float]
    record: Callable[..., None]
    wait: Callable[..., None]
    elapsed_ms: Callable[..., float]


_Event: Any = torch.cuda.Event
_BOUND = _Device(_Event, torch.cuda.synchronize, perf_counter, _Event.record, _Event.synchronize, _Event.elapsed_time)
_CHILD = GlobalSetting("a child process", child_processes.has_children, cannot_be_put_back)


class Timer(Protocol):
    """name: as reports print it. equivalence_margin: the relative difference under which two times are called the same."""

    name: str
    equivalence_margin: float

    def time(self, calls: Iterable[Callable[[], Any]]) -> float:
        """Seconds that the calls take, one after the other, their work finished.

        An iterator's are timed one by one: what it does before it yields a call, and after the last, is not.
        """

    def host_us(self, calls: Iterable[Callable[[], Any]]) -> float | None:
        """The median time for a call to return, its work unfinished; None where calls return finished."""


class WallTimer:
    """Wall-clock time of calls that have finished when they return."""

    name = "wall clock"
    equivalence_margin = EQUIVALENCE_MARGINS["timing"]

    def time(self, calls: Iterable[Callable[[], Any]], *, now: Callable[[], float] = perf_counter) -> float:
        if isinstance(calls, Iterator):
            return sum((self.time([call]) for call in calls), 0.0)
        start = now()
        for call in calls:
            call()
        return now() - start

    def host_us(self, calls: Iterable[Callable[[], Any]]) -> None:
        return None


class CudaEventTimer:
    """A GPU's time between two events around the calls, as called: where it waits for the host to launch, that counts too.

    It is waited for before the first event, lest earlier work be timed, and before the second, so that work which a call put
    on another stream is. The events are fresh: an elapsed time since a far-away one has no resolution left.
    """

    name = "CUDA events"
    equivalence_margin = EQUIVALENCE_MARGINS["timing"]  # launches are as unsteady as the host is

    def __init__(self, device: str):
        self._device = device

    def time(self, calls: Iterable[Callable[[], Any]], *, bound: _Device = _BOUND) -> float:
        if isinstance(calls, Iterator):
            return sum((self.time([call]) for call in calls), 0.0)
        with torch.cuda.device(self._device):
            start, end = (bound.event(enable_timing=True) for _ in range(2))
            bound.synchronize()
            bound.record(end)  # an event is made when it is first recorded, which is not to be timed
            bound.record(start)
            for call in calls:
                call()
            bound.synchronize()
            bound.record(end)
            bound.wait(end)
            return float(bound.elapsed_ms(start, end)) * 1e-3

    def host_us(self, calls: Iterable[Callable[[], Any]], *, bound: _Device = _BOUND) -> float:
        elapsed = []
        for call in calls:
            bound.synchronize(self._device)
            start = bound.now()
            call()
            elapsed.append(bound.now() - start)
        bound.synchronize(self._device)
        return median(elapsed) * 1e6


class CudaGraphTimer(CudaEventTimer):
    """Clock for replays of CUDA graphs, which the device runs without the host: it resolves a smaller difference."""

    name = "CUDA events, graph replay"
    equivalence_margin = EQUIVALENCE_MARGINS["replay"]


def for_device(device: str) -> Timer:
    """The clock of calls as a program makes them."""
    return CudaEventTimer(device) if device.startswith("cuda") else WallTimer()


def equivalence_margins(devices: Iterable[str]) -> str:
    """Returns the smallest differences that count on such devices, in words."""
    has_gpu = any(device.startswith("cuda") for device in devices)
    as_called = f"{CudaEventTimer.equivalence_margin if has_gpu else WallTimer.equivalence_margin:.0%}"
    return f"{as_called}, device only {CudaGraphTimer.equivalence_margin:.1%}" if has_gpu else as_called


class SettingsClock:
    """A clock that raises WrongResult where a stretch of calls leaves a setting other than it was before the first.

    A layer could change one for its own blocks, or for its baseline's. Settings are read when the clock has stopped, a few
    microseconds each. Untimed calls are watched too, so that a layer which puts all back at the end of its block is seen in the
    middle of it.
    """

    def __init__(self, clock: Timer) -> None:
        self.name, self.equivalence_margin = clock.name, clock.equivalence_margin
        self._clock = clock
        self._snapshot: ambient.Snapshot | None = None

    def time(self, calls: Iterable[Callable[[], Any]]) -> float:
        """Returns the wrapped clock's time, which stops before the settings are read."""
        if self._snapshot is None:
            self._snapshot = ambient.Snapshot([*ambient.quick(), _CHILD])
        seconds = self._clock.time(calls)
        for _, _, change in self._snapshot.changes():
            raise WrongResult(f"{change}, while blocks of calls alternate")
        return seconds

    def host_us(self, calls: Iterable[Callable[[], Any]]) -> float | None:
        """Returns the wrapped clock's `host_us`."""
        return self._clock.host_us(calls)


class RecordedTimer:
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


replay_clock = RecordedTimer()
