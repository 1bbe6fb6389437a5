"""A host whose calls wander by a factor in spells, simulated: columns measured there in no time, by a clock of its own.

Each spell has a level, drawn between the least and the most, and lasts a while, drawn as well. All calls take their time at the
level, and some noise of their own. A baseline may be slowed by the candidate: for good once that is built, or by turns.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ecornn.measurement import columns, measurement
from pytest_ecornn.measurement.columns import TimingColumn
from pytest_ecornn.measurement.measurement import block_counts
from pytest_ecornn.measurement.noise import baselines
from pytest_ecornn.measurement.noise.baselines import BaselineProbe
from pytest_ecornn.measurement.noise.bounds import TimedBlockBounds
from pytest_ecornn.measurement.noise.watch import Waits
from pytest_ecornn.results.rows import BaselineRatio
from pytest_ecornn.results.statistics import CONFIDENCE

_PREPARING = 2e-4  # seconds a call, its inputs


class Host:
    """`now`: its time in seconds. spell: the mean duration of one. noise: of a call."""

    def __init__(self, seed: int, least: float = 1.4, most: float = 2.7, spell: float = 0.3, noise: float = 0.03):
        self._random, self._levels = random.Random(seed), (math.log(least), math.log(most))
        self._spell, self._noise = spell, noise
        self.now = self._end = 0.0
        self._level = 1.0

    def call(self, seconds: float) -> float:
        """Makes a call and returns how long it took."""
        if self.now >= self._end:
            self._level = math.exp(self._random.uniform(*self._levels))
            self._end = self.now + self._random.expovariate(1 / self._spell)
        took = seconds * self._level * math.exp(self._random.gauss(0, self._noise))
        self.now += took
        return took


class Arm:
    """Calls of `seconds` at level 1; `factor` tells how many times as long the next one takes."""

    def __init__(self, name: str, host: Host, seconds: float, factor: Callable[[], float] = lambda: 1.0):
        self.candidate: Any = SimpleNamespace(name=name, device="cpu", is_training=False)
        self.samples_us = list[float]()
        self.calls = self.warmup_calls = 1
        self.last = -1.0  # when it was called last
        self._host, self._seconds, self._factor = host, seconds, factor

    def calibrate(self, clock: object) -> None:
        self.calls, self.warmup_calls = block_counts(min(self._call() for _ in range(3)))

    def block(self, clock: object, is_settled: bool) -> None:
        untimed = min(1, self.calls - 1) if is_settled else self.warmup_calls
        self._host.now += (untimed + self.calls) * _PREPARING
        for _ in range(untimed):
            self._call()
        self.samples_us.append(sum(self._call() for _ in range(self.calls)) / self.calls * 1e6)

    def fresh(self) -> Arm:
        arm = Arm(self.candidate.name, self._host, self._seconds, self._factor)
        arm.calls, arm.warmup_calls = self.calls, self.warmup_calls
        return arm

    def _call(self) -> float:
        took = self._host.call(self._seconds * self._factor())
        self.last = self._host.now
        return took


class _Unwatched:
    """A watch that sees nothing: the machine that runs the test is not the one that is simulated."""

    def __init__(self, clock: Any, arms: Sequence[Any]):
        self._clock = clock

    def __enter__(self) -> Any:
        return self._clock

    def __exit__(self, *error: object) -> None: ...

    def after_block(self, arm: Any) -> None: ...

    def waits(self, arm: Any) -> Waits:
        return Waits()

    def disturbance(self) -> None: ...

    def bounds(self, arm: Any, disturbance: None) -> TimedBlockBounds:
        return TimedBlockBounds.of(arm.samples_us, [], [], disturbance)


@contextmanager
def simulated(host: Host) -> Iterator[None]:
    """Within it, time is the host's."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (measurement, baselines, columns):
            patch.setattr(module, "own_time", lambda: host.now)
        patch.setattr(measurement, "_ORDER", random.Random(0))
        for module in (columns, baselines):
            patch.setattr(module, "Watch", _Unwatched)
        patch.setattr(columns, "SettingsClock", lambda clock: clock)
        patch.setattr(measurement.gc, "collect", lambda: 0)
        yield


def compared(
    host: Host, ratio: float, budget: float, *, for_good: float = 1.0, by_turns: float = 1.0, is_probed: bool = True
) -> BaselineRatio:
    """A row's comparison of a candidate, `ratio` times as long as its baseline where that is not slowed.

    for_good: how many times as long the baseline takes once the candidate is built. by_turns: within 50 ms after its calls.
    is_probed: whether the baseline is timed alone as well.
    """
    clock: Any = SimpleNamespace(name="simulated", equivalence_margin=0.05)
    candidate = Arm("candidate", host, 1e-3 * ratio)
    is_built = False

    def factor() -> float:
        return (for_good if is_built else 1.0) * (by_turns if 0 <= host.now - candidate.last < 0.05 else 1.0)

    with simulated(host):
        baseline = Arm("baseline", host, 1e-3, factor)
        probe = BaselineProbe([baseline], clock, budget) if is_probed else None
        is_built = True
        column = TimingColumn([candidate, baseline.fresh()], clock, CONFIDENCE, probe)
        column.measure(budget)
        return column.against()[0]
