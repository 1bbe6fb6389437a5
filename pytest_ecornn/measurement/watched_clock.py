"""A clock that notes how long this process's threads waited for a processor while a block ran, apart from what it times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time, thread_time
from typing import Any

from pytest_ecornn.measurement.clocks import Timer
from pytest_ecornn.system.machine_load import usable_processors
from pytest_ecornn.system.own_waits import OwnWaits, tick


@dataclass(frozen=True)
class AddressRange:
    """A while in which a process's calls ran. All in seconds: its threads waited and worked, the calling one among them.

    around: between the readings of the waits and those of the other times, when the calling thread may have waited as well.
    stale: by which the other threads' work may be counted too high or too low.
    """

    wall: float
    wait: float
    used: float
    caller_wait: float
    caller_used: float
    around: float = 0.0
    stale: float = 0.0

    def lost(self, processors: int) -> float:
        """The share of the time that others may have cost at most.

        A wait is others' doing only as far as our own threads left processors over: what is more, they took from each other.
        """
        least_used = max(self.caller_used, self.used - self.stale)
        return self._share(min(self.wait, processors * self.wall - least_used))

    @property
    def delayed(self) -> float:
        """The share of the time that others have cost for certain: the calling thread waited, and no other one worked."""
        return self._share(self.caller_wait - self.around - (self.used - self.caller_used) - self.stale)

    def _share(self, seconds: float) -> float:
        return min(1.0, max(0.0, seconds) / self.wall) if self.wall > 0 else 0.0


class WatchedClock:
    """The given clock, and `lost` and `delayed` of what it timed last."""

    def __init__(self, clock: Timer, waits: OwnWaits | None = None):
        self.name, self.equivalence_margin = clock.name, clock.equivalence_margin
        self._clock, self._waits = clock, waits or OwnWaits()
        self._processors, self._tick = len(usable_processors()) or 1, tick()
        self.lost = self.delayed = self._used = self._seen = 0.0

    def time(self, calls: Sequence[Callable[[], Any]]) -> float:
        first, before = perf_counter(), self._waits.read()
        used, caller_used, start = process_time(), thread_time(), perf_counter()
        seconds = self._clock.time(calls)
        wall, caller_used, used = perf_counter() - start, thread_time() - caller_used, process_time() - used
        waited = self._waits.since(before)
        around, stale = perf_counter() - first - wall, self._tick * min(self._processors - 1, waited.others)
        span = AddressRange(wall, waited.wait, used, waited.caller, caller_used, around, stale)
        self.lost = span.lost(self._processors)
        self.delayed = min(self.lost, span.delayed)
        self._used, self._seen = self._used + used, self._seen + waited.used
        return seconds

    def host_us(self, calls: Sequence[Callable[[], Any]]) -> float | None:
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
