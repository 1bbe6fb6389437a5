"""How long this process's threads waited for a processor while a block ran, as Linux counts it in /proc.

Elsewhere nothing is known. A thread that began and ended between two readings is seen in neither: `used` tells how much of
the work that hides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from threading import get_native_id
from time import clock_getres, perf_counter, process_time, thread_time
from typing import Any

from pytest_ecornn.measurement.clocks import Timer
from pytest_ecornn.system.own_threads import TASKS, own_threads, usable_processors

_NS = 1e-9
_CLOCK_MONOTONIC_COARSE, _LONGEST_TICK = 6, 0.01  # Linux's clock that advances once a tick; a tick where there is no such clock
_LONGEST_LINE = 80
_READINGS = 8.0  # times as long as the readings around it takes a call of which waits are read


@dataclass(frozen=True)
class Waited:
    """Seconds that the observed threads waited and worked between two readings, summed over threads.

    caller: that the one waited which took the readings. others: how many threads there are beside that one.
    """

    wait: float
    used: float
    caller: float
    others: int = 0


def tick() -> float:
    """Seconds between two of the system's ticks. The work of a thread that runs on another processor is counted at these."""
    try:
        return clock_getres(_CLOCK_MONOTONIC_COARSE)
    except OSError:
        return _LONGEST_TICK


class OwnWaits:
    """Readings of all threads, OpenMP's as well. A thread's file stays open until `close`, since to open it takes longest."""

    def __init__(self, tasks: Path = TASKS):
        self._tasks = tasks
        self._files: dict[str, int] = {}
        self.is_known = self._read_all() is not None
        self.close()

    def read(self) -> dict[str, tuple[int, int]]:
        """Nanoseconds that each thread has worked and waited; nothing where that is not known."""
        return (self._read_all() or {}) if self.is_known else {}

    def since(self, before: dict[str, tuple[int, int]]) -> Waited:
        """A thread that began since has waited from its beginning."""
        spans = {thread: _difference(now, before.get(thread, (0, 0))) for thread, now in self.read().items()}
        used, wait = (sum(span[part] for span in spans.values()) * _NS for part in (0, 1))
        own = str(get_native_id())
        return Waited(wait, used, spans.get(own, (0, 0))[1] * _NS, len(spans.keys() - {own}))

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _read_all(self) -> dict[str, tuple[int, int]] | None:
        """Reads the counts of all threads; None where the system has no such count."""
        readings = {thread: counts for thread in own_threads(self._tasks) if (counts := self._counts(thread)) is not None}
        for ended in self._files.keys() - readings.keys():
            os.close(self._files.pop(ended))
        return readings or None

    def _counts(self, thread: str) -> tuple[int, int] | None:
        """Reads the nanoseconds that a thread has worked and waited; None for one that has just ended."""
        try:
            if thread not in self._files:
                self._files[thread] = os.open(self._tasks / thread / "schedstat", os.O_RDONLY)
            worked, waited, _ = os.pread(self._files[thread], _LONGEST_LINE, 0).split()
        except (OSError, ValueError):
            return None
        return int(worked), int(waited)


def _others_used() -> float:
    """Seconds that all threads but the calling one have worked."""
    return process_time() - thread_time()


def _difference(now: tuple[int, int], then: tuple[int, int]) -> tuple[int, int]:
    return now[0] - then[0], now[1] - then[1]


@dataclass(frozen=True)
class TimedSpan:
    """Seconds that calls of this process took, and that its threads waited and worked meanwhile, the calling one among them.

    others_least, others_most: that the other threads worked; a count that stands still until the next tick has no closer
    bounds. around: between the readings of the waits and those of the other times, when the calling thread may have waited as
    well. timed: of `wall`, what the clock has counted, unless all; waits beside it may have been within.
    """

    wall: float = 0.0
    wait: float = 0.0
    caller_wait: float = 0.0
    caller_used: float = 0.0
    others_least: float = 0.0
    others_most: float = 0.0
    around: float = 0.0
    timed: float = 0.0

    def lost(self, processors: int) -> float:
        """The share of the time that others may have cost at most.

        A wait is others' doing only as far as our own threads left processors over: what is more, they took from each other.
        """
        return self._share(min(self.wait, processors * self.wall - self.caller_used - self.others_least))

    @property
    def delayed(self) -> float:
        """The share of the time that others have cost for certain: the calling thread waited, and no other one worked."""
        return self._share(self.caller_wait - self.around - self.others_most)

    def _share(self, seconds: float) -> float:
        timed = min(self.wall, self.timed or self.wall)
        return min(1.0, max(0.0, seconds) / timed) if timed > 0 else 0.0


class WatchedClock:
    """The given clock, and `lost` and `delayed` of what it timed last.

    Waits are read before and after each of an iterator's calls, not while it makes the next one ready. A call that is short
    beside the readings is watched together with those that follow. What has a method `look` is looked at before the reading,
    or a thread could end its work meanwhile.
    """

    def __init__(self, clock: Timer, waits: OwnWaits | None = None):
        self.name, self.equivalence_margin = clock.name, clock.equivalence_margin
        self._clock, self._waits = clock, waits or OwnWaits()
        self._processors, self._tick = len(usable_processors()) or 1, tick()
        self.lost = self.delayed = self._used = self._seen = 0.0

    def time(self, calls: Iterable[Callable[[], Any]]) -> float:
        others = -_others_used()
        spans = list(self._spans(calls))
        others, stale = others + _others_used(), max((stale for _, stale in spans), default=0.0)
        total = TimedSpan(*map(sum, zip(*(astuple(span) for span, _ in spans), strict=True)))
        self.lost = total.lost(self._processors)
        # What one call's threads have done may be counted after the next one's ticks, or between them.
        self.delayed = min(self.lost, replace(total, others_most=others + stale).delayed)
        return total.timed

    def _spans(self, calls: Iterable[Callable[[], Any]]) -> Iterator[tuple[TimedSpan, float]]:
        """Yields each span with `_stale` of it."""
        if not isinstance(calls, Iterator):
            yield self._watched(calls)
            return
        for call in calls:
            span, stale = self._watched([call], getattr(call, "look", None))
            yield span, stale
            if span.wall < _READINGS * span.around:
                yield self._watched(calls)

    def _watched(self, calls: Iterable[Callable[[], Any]], look: Callable[[], None] | None = None) -> tuple[TimedSpan, float]:
        first, before = perf_counter(), self._waits.read()
        others, caller_used, start = _others_used(), thread_time(), perf_counter()
        seconds = self._clock.time(calls)
        wall, caller_used, others = perf_counter() - start, thread_time() - caller_used, _others_used() - others
        if look:
            look()
        waited = self._waits.since(before)
        around, stale = perf_counter() - first - wall, self._stale(waited.others)
        self._used, self._seen = self._used + caller_used + others, self._seen + waited.used
        least, most = max(0.0, others - stale), others + stale
        return TimedSpan(wall, waited.wait, waited.caller, caller_used, least, most, around, seconds), stale

    def _stale(self, others: int) -> float:
        """Seconds by which so many other threads' work may be counted too high or too low."""
        return self._tick * min(self._processors - 1, others)

    def host_us(self, calls: Iterable[Callable[[], Any]]) -> float | None:
        return self._clock.host_us(calls)

    @property
    def unseen(self) -> float:
        """The share of all work that was timed by threads whose waits are not known."""
        return max(0.0, 1 - self._seen / self._used) if self._used and self.sees_waits else 0.0

    @property
    def sees_waits(self) -> bool:
        """Whether the system tells how long threads wait."""
        return self._waits.is_known

    def close(self) -> None:
        self._waits.close()
