"""A clock that notes how long this process's threads waited for a processor while a block ran, apart from what it times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from pytest_ecornn.clocks import Clock
from pytest_ecornn.machine_load import usable_processors
from pytest_ecornn.own_waits import OwnWaits, spent


class WatchedClock:
    """The given clock, and of what it timed last: `lost`, the share of its time that others may have cost at most.

    A wait is others' doing only as far as our own threads left processors over: what is more, they took from each other.
    """

    def __init__(self, clock: Clock, waits: OwnWaits | None = None):
        self.name, self.smallest_difference = clock.name, clock.smallest_difference
        self._clock, self._waits = clock, waits or OwnWaits()
        self._processors = len(usable_processors()) or 1
        self.lost = self._used = self._seen = 0.0

    def time(self, calls: Sequence[Callable[[], Any]]) -> float:
        before, worked, start = self._waits.read(), spent(), perf_counter()
        seconds = self._clock.time(calls)
        wall, used, waited = perf_counter() - start, spent() - worked, self._waits.since(before)
        self._used, self._seen = self._used + used, self._seen + waited.used
        self.lost = lost_share(waited.wait, wall, used, self._processors)
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


def lost_share(wait: float, wall: float, used: float, processors: int) -> float:
    """Of the wall time, from 0 to 1."""
    if wall <= 0:
        return 0.0
    left_over = processors * wall - used
    return min(1.0, max(0.0, min(wait, left_over)) / wall)
