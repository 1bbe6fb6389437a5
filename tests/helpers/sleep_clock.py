"""A clock that only sleeping advances, so that no other work on this machine decides a test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SleepClock:
    """Takes the place of the module `time` where what is timed sleeps."""

    now: float = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
