"""Whether a baseline takes as long alone as beside a candidate. Where not, something else than the two was measured.

A layer may slow others while they take turns, and for good. So `BaselineProbe` times baselines alone, before the candidate is
built and after its row. What is not the same as beside the candidate becomes a `Doubt`, by which the ratio's interval widens:
"faster" must hold against the quickest that the baseline was, "slower" against its slowest.
`compare_with_own_rows` looks at the end of a run at rows in which the baseline was the candidate itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import inf

import numpy as np
import torch

from pytest_ecornn.measurement.clocks import Timer
from pytest_ecornn.measurement.measurement import Timeable, gc_disabled
from pytest_ecornn.measurement.noise.bounds import TimedBlockBounds
from pytest_ecornn.measurement.noise.watch import Watch
from pytest_ecornn.results.rows import Doubt, Row, Timing
from pytest_ecornn.results.statistics import EQUIVALENCE_MARGINS, MIN_PAIRS, Ratio, median_interval, verdict
from pytest_ecornn.system.locking import own_time, turn

PLACES = 0.1  # by which graphs may differ that were captured at other times: a short call's time changes with its addresses
_BLOCKS, _FEW, _FEWEST = 8, 4, 2
_GROUPS = 16
_SHARE = 0.01  # of a row's budget, for each time that a baseline is timed
_PATIENCE = 5.0  # of these, where it is noisy
_TIMES = 3  # it is timed afterwards, where it differs: a disturbance ends, what a layer left behind does not
_TIMES_ITS_OWN = 2.0  # what it takes in a row of its own


@dataclass(frozen=True)
class Alone:
    """Time of a call of a baseline that nothing else took turns with, in microseconds: the median with its interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, blocks: TimedBlockBounds) -> Alone:
        """Bounds the median of blocks, whatever others have cost: then the least disturbed ones do, where there are enough.

        Neighbours are alike where the host's speed comes in spells, so groups of them count.
        """
        if not blocks.is_certain and len(blocks.most_us) >= MIN_PAIRS:
            return cls(*blocks.interval())
        middle, _, high = median_interval(_groups(blocks.most_us))
        return cls(middle, median_interval(_groups(blocks.least_us))[1], high)

    def is_steady(self, margin: float) -> bool:
        """Whether the interval is narrow enough to tell whether others are the same."""
        return self.high <= (1 + margin) * self.low

    def doubts(self, cause: str, beside_us: float, margin: float) -> list[Doubt]:
        """The doubt about a baseline that took so long beside a candidate; none where that is the same, within the margin."""
        ratio = Ratio(*(time / beside_us for time in (self.median, self.low, self.high)))
        return [] if verdict(ratio, margin) == "same" else [Doubt(cause, ratio.ratio, ratio.low, ratio.high)]


def _groups(times_us: Sequence[float]) -> list[float]:
    """The medians of groups of neighbours, all of one size."""
    size = max(1, len(times_us) // _GROUPS)
    groups = np.asarray(times_us[len(times_us) % size :], dtype=np.float64).reshape(-1, size)
    medians: list[float] = np.median(groups, axis=1).tolist()
    return medians


class BaselineProbe:
    """Times the baselines of one column of a row alone. It is made before the row's candidate is built.

    margin: by how much times alone before may differ from those beside the candidate; the clock's, unless given.
    """

    def __init__(self, arms: Sequence[Timeable], clock: Timer, budget: float, margin: float = 0.0):
        self._clock, self._seconds, self._own = clock, _SHARE * budget, clock.equivalence_margin
        self._margin, self._after = margin or self._own, dict[str, Alone]()
        with _at_rest(arms):
            for arm in arms:
                with turn():
                    arm.calibrate(clock)
            self._before = {arm.candidate.name: self._quickest(arm) for arm in arms}

    def doubts(self, name: str, beside_us: float) -> list[Doubt]:
        """The doubts so far about a baseline that took so long beside the candidate."""
        before = self._before[name].doubts("before", beside_us, self._margin) if name in self._before else []
        after = self._after[name].doubts("after", beside_us, self._own) if name in self._after else []
        return [*before, *after]

    def time_after(self, beside: Sequence[Timeable], times_us: Sequence[float]) -> None:
        """Times the baselines that took turns with the candidate, and so long, once more."""
        with _at_rest(beside):
            for arm, time_us in zip(beside, times_us, strict=True):
                self._after[arm.candidate.name] = self._timed_after(arm, time_us)

    def _timed_after(self, beside: Timeable, beside_us: float) -> Alone:
        """Of several times together, or of one as soon as that is the same as beside the candidate."""
        several = list[TimedBlockBounds]()
        for _ in range(_TIMES):
            several.append(self._time(beside))
            if not Alone.of(several[-1]).doubts("after", beside_us, self._own):
                return Alone.of(several[-1])
        return Alone.of(TimedBlockBounds.joined(several))

    def _quickest(self, arm: Timeable) -> Alone:
        """Returns the quicker of two timings in a row: a short disturbance is over by the second."""
        start, first = own_time(), Alone.of(self._time(arm))
        if own_time() - start > _PATIENCE * self._seconds:
            return first
        return min(first, Alone.of(self._time(arm)), key=lambda alone: alone.median)

    def _time(self, arm: Timeable) -> TimedBlockBounds:
        """Eight blocks and more while they are noisy; four where these take all the time that there is, or two.

        The memory that the calls take is freed afterwards.
        """
        arm, start = arm.fresh(), own_time()
        watch = Watch(self._clock, [arm])
        with watch as clock:
            for done in count(1):
                with turn() as waited:
                    arm.block(clock, is_settled=done > 1 and not waited)
                watch.after_block(arm)
                blocks, spent = watch.bounds(arm, watch.disturbance()), own_time() - start
                is_steady = Alone.of(blocks).is_steady(self._own)
                limit = self._seconds if is_steady else _PATIENCE * self._seconds
                few = _FEW if blocks.is_certain else _BLOCKS
                is_over = spent > limit * (1.0 if done >= few else _FEW if done >= _FEWEST else inf)
                if is_over or (done >= _BLOCKS and is_steady):
                    break
        return blocks


@contextmanager
def _at_rest(arms: Sequence[Timeable]) -> Iterator[None]:
    """Sets the conditions of a column's measurement, but without a search for garbage first.

    That search takes longer than the blocks.
    """
    training = any(arm.candidate.is_training for arm in arms)
    with gc_disabled(is_collected_first=False), torch.set_grad_enabled(training):
        yield


def compare_with_own_rows(rows: Iterable[Row]) -> None:
    """Doubts the ratios to a baseline that took twice what it took where it was the candidate itself, and judges them anew."""
    rows = list(rows)
    for column, margin in EQUIVALENCE_MARGINS.items():
        for row, timing in _timed(rows, column):
            for ratio in timing.against:
                own_us = [own.time_us for other, own in _timed(rows, column) if _is_own_row(other, row, ratio.baseline)]
                if own_us and ratio.time_us > _TIMES_ITS_OWN * min(own_us):
                    times = min(own_us) / ratio.time_us
                    ratio.add_doubts([Doubt("own row", times, times, times)], margin)


def _timed(rows: list[Row], column: str) -> Iterator[tuple[Row, Timing]]:
    return ((row, timing) for row in rows if (timing := getattr(row, column)) is not None)


def _is_own_row(other: Row, row: Row, baseline: str) -> bool:
    """Whether the baseline was the candidate there, on the same case."""
    return other is not row and (other.implementation, other.case) == (baseline, row.case)
