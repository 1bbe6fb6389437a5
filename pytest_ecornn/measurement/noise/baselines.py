"""Whether a baseline takes as long beside a candidate as without it. Where not, something else than the two was measured.

`BaselineProbe` times it alone, before the candidate is built and after its row: a layer may slow others for good. A row is
unclear where the two differ by more than a tenth, or where the baseline took far longer by turns with the candidate than alone.
`compare_with_own_rows` looks at the end of a run at rows in which the baseline was the candidate itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from pytest_ecornn.measurement.clocks import Timer
from pytest_ecornn.measurement.measurement import Arm, Timeable, gc_disabled
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.results.formatting import duration
from pytest_ecornn.results.rows import Row, Timing
from pytest_ecornn.verification.guards.background import ThreadGuard
from pytest_ecornn.verification.verification import Candidate

MOST_CHANGED = 1.1
MOST_BESIDE = 1.5  # by turns: a candidate's caches and sleeping threads are in the way
_BLOCKS, _FEW, _FEWEST = 8, 4, 2
_SHARE = 0.01  # of a row's budget, for each time that a baseline is timed
_TIMES = 3  # it is timed afterwards, where it seems to have changed: a disturbance ends, what a layer left behind does not
_TIMES_ITS_OWN = 2.0  # what it takes in a row of its own
_COLUMNS = ("timing", "replay")


@dataclass(frozen=True)
class Alone:
    """Blocks of a baseline that nothing else took turns with, in microseconds of a call."""

    samples_us: list[float]

    @property
    def median(self) -> float:
        return float(np.median(self.samples_us))

    @property
    def middle(self) -> tuple[float, float]:
        """Bounds of the middle half of the blocks; of all of them, where they are few."""
        outside = 0.25 if len(self.samples_us) >= _BLOCKS else 0.0
        low, high = np.quantile(self.samples_us, (outside, 1 - outside))
        return float(low), float(high)

    def ratio_to(self, before: Alone) -> float:
        """How many times as long as before; 1 where the middle halves of the blocks do not lie so far apart."""
        (low, high), (first, last) = self.middle, before.middle
        is_changed = low > MOST_CHANGED * last or MOST_CHANGED * high < first
        return self.median / before.median if is_changed else 1.0


class BaselineProbe:
    """Times the baselines of one row alone. It is made before the row's candidate is built.

    The memory that blocks of calls take is freed in between.
    """

    def __init__(self, baselines: Sequence[Candidate], pool: InputPool, clock: Timer, threads: ThreadGuard, budget: float):
        self._arms = [Arm(baseline, pool, threads=threads) for baseline in baselines]
        self._clock, self._seconds = clock, _SHARE * budget
        with self._at_rest():
            for arm in self._arms:
                arm.calibrate(clock)
            self._before = [self._quickest(arm) for arm in self._arms]
        self._arms = [Arm(arm.candidate, pool, arm.seconds, arm.calls, arm.warmup_calls, threads=threads) for arm in self._arms]

    def doubts(self, beside: Sequence[Timeable]) -> dict[str, str]:
        """Why verdicts on a baseline are unclear, by its name. beside: the same baselines, as they took turns."""
        doubts = {}
        for arm, before, turns in zip(self._arms, self._before, beside, strict=True):
            name, after = arm.candidate.name, self._after(arm, before)
            if (ratio := after.ratio_to(before)) != 1.0:
                doubts[name] = f"{name} took {ratio:.2f} times as long after the candidate was built and timed as before"
            elif (ratio := _beside(turns.samples_us, before, after)) > MOST_BESIDE:
                doubts[name] = f"{name} took {ratio:.2f} times as long by turns with the candidate as alone"
        return doubts

    def _after(self, arm: Arm, before: Alone) -> Alone:
        with self._at_rest():
            for _ in range(_TIMES):
                after = self._time(arm)
                if after.ratio_to(before) == 1.0:
                    break
        return after

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Sets the conditions of a column's measurement, but without a search for garbage first.

        That search takes longer than the blocks.
        """
        training = any(arm.candidate.case.training for arm in self._arms)
        with gc_disabled(is_collected_first=False), torch.set_grad_enabled(training):
            yield

    def _quickest(self, arm: Arm) -> Alone:
        """Returns the quicker of two timings in a row: a short disturbance is over by the second."""
        start, first = perf_counter(), self._time(arm)
        if perf_counter() - start > self._seconds:
            return first
        return min(first, self._time(arm), key=lambda alone: alone.median)

    def _time(self, arm: Arm) -> Alone:
        """Eight blocks, or four where these take all the time that there is, or two where these take four times as much."""
        arm.samples_us.clear()
        start = perf_counter()
        while len(arm.samples_us) < _BLOCKS:
            arm.block(self._clock, is_settled=bool(arm.samples_us))
            spent, done = perf_counter() - start, len(arm.samples_us)
            if (done >= _FEW and spent > self._seconds) or (done >= _FEWEST and spent > _FEW * self._seconds):
                break
        return Alone(list(arm.samples_us))


def _beside(samples_us: Sequence[float], before: Alone, after: Alone) -> float:
    """How many times as long as alone, at least."""
    return Alone(list(samples_us)).middle[0] / max(alone.middle[1] for alone in (before, after))


def apply_doubts(doubts: dict[str, str], timing: Timing | None) -> None:
    """Makes the verdicts on doubtful baselines unclear, with the reason."""
    for ratio in timing.against if timing else ():
        if ratio.baseline in doubts:
            ratio.make_doubtful(doubts[ratio.baseline])


def compare_with_own_rows(rows: Iterable[Row]) -> None:
    """Makes verdicts unclear, with the reason, whose baseline took twice what it took where it was the candidate itself."""
    rows = list(rows)
    for column in _COLUMNS:
        for row, timing in _timed(rows, column):
            for ratio in timing.against:
                own_us = [own.time_us for other, own in _timed(rows, column) if _is_own_row(other, row, ratio.baseline)]
                if own_us and ratio.time_us > _TIMES_ITS_OWN * min(own_us):
                    here, alone = duration(ratio.time_us), duration(min(own_us))
                    ratio.make_doubtful(f"{ratio.baseline} took {here} here and {alone} in its own row")


def _timed(rows: list[Row], column: str) -> Iterator[tuple[Row, Timing]]:
    return ((row, timing) for row in rows if (timing := getattr(row, column)) is not None)


def _is_own_row(other: Row, row: Row, baseline: str) -> bool:
    """Whether the baseline was the candidate there, on the same case."""
    return other is not row and (other.implementation, other.case) == (baseline, row.case)
