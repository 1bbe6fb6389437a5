"""Checks after every block the settings that a layer could change for its own blocks, or for its baseline's.

They are read when the clock has stopped, a few microseconds each. Untimed calls are watched too, so that a layer which puts
all back at the end of its block is seen in the middle of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_ecornn.measurement.clocks import Timer
from pytest_ecornn.system import child_processes
from pytest_ecornn.verification.calls import WrongResult
from pytest_ecornn.verification.guards import ambient
from pytest_ecornn.verification.guards.setting import GlobalSetting, cannot_be_put_back

_CHILD = GlobalSetting("a child process", child_processes.has_children, cannot_be_put_back)


class SettingsClock:
    """A clock that raises WrongResult where a stretch of calls leaves a setting other than it was before the first."""

    def __init__(self, clock: Timer) -> None:
        self.name, self.equivalence_margin = clock.name, clock.equivalence_margin
        self._clock = clock
        self._snapshot: ambient.Snapshot | None = None

    def time(self, calls: Sequence[Callable[[], Any]]) -> float:
        """Returns the wrapped clock's time, which stops before the settings are read."""
        if self._snapshot is None:
            self._snapshot = ambient.Snapshot([*ambient.quick(), _CHILD])
        seconds = self._clock.time(calls)
        for _, _, change in self._snapshot.changes():
            raise WrongResult(f"{change}, while blocks of calls alternate")
        return seconds

    def host_us(self, calls: Sequence[Callable[[], Any]]) -> float | None:
        """Returns the wrapped clock's `host_us`."""
        return self._clock.host_us(calls)
