"""A clock that sleeping and readings alone advance, so that no other work on this machine decides a test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SleepClock:
    """Takes the place of the module `time` where what is timed sleeps. A reading takes 1 ns: no duration is 0."""

    now: float = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-9
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
