"""Bounds on the times and ratios that a quiet machine would have shown, from blocks that others disturbed.

A thread that waits for a processor delays its block by no more than its wait, and perhaps not at all: nobody may have waited
for it. So a block would have taken its time at most, and its time less all waits at least. Pairs of undisturbed blocks decide
where there are enough. Else each arm's least disturbed blocks do, pairs or not: the bounds of any block hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ecornn import statistics
from pytest_ecornn.disturbance import CALM, is_disturbed, outside_share
from pytest_ecornn.rows import Disturbance
from pytest_ecornn.statistics import CONFIDENCE, MIN_PAIRS, Ratio

_LEAST = 0.125  # of an arm's blocks, which count as its least disturbed ones
_MOST_LOST = 0.999  # of a block, so that its bounds are numbers
_FAR = 1e6  # how far an interval's ends are from a ratio at most, so that they can be drawn
_UNSEEN = 0.2  # of our own work, by threads whose waits are not known: more, and no bound is known


@dataclass(frozen=True)
class Blocks:
    """An arm's blocks in order. lost: the share of each block's time that others may have cost; None on a quiet machine."""

    times_us: Sequence[float]
    lost: Sequence[float] | None = None

    @classmethod
    def of(cls, times_us: Sequence[float], lost: Sequence[float], found: Disturbance | None) -> Blocks:
        """As measured. What was taken from all blocks alike is lost in each. All may be, where nobody knows the waits."""
        if found is None or not is_disturbed(found):
            return cls(times_us)
        if not lost or found.unseen > _UNSEEN:
            return cls(times_us, [_MOST_LOST] * len(times_us))
        kept = 1 - outside_share(found)
        return cls(times_us, [min(_MOST_LOST, 1 - (1 - share) * kept) for share in lost])

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
        """(median, low, high) of the time; of the least disturbed blocks, unless the machine was quiet."""
        if self.lost is None:
            return statistics.median_interval(self.times_us, confidence)
        ranked = sorted(range(len(self.lost)), key=self.lost.__getitem__)
        chosen = self._picked(ranked[: max(MIN_PAIRS, round(_LEAST * len(ranked)))])
        time_us, _, high = statistics.reaching_interval(chosen.times_us, confidence)
        return time_us, statistics.reaching_interval(chosen.least_us, confidence)[1], high

    def ratio_to(self, baseline: Blocks, confidence: float = CONFIDENCE) -> Ratio:
        """As `statistics.paired_ratio`; its interval holds whatever the waits have cost.

        Raises ValueError as that does, and where the shares are of other blocks.
        """
        if self.lost is None or baseline.lost is None:
            return statistics.paired_ratio(self.times_us, baseline.times_us, confidence)
        pairs = enumerate(zip(self.lost, baseline.lost, strict=True))
        calm = [place for place, lost in pairs if max(lost) <= CALM]
        if len(calm) >= MIN_PAIRS:
            return self._picked(calm)._paired(baseline._picked(calm), confidence)
        each = 1 - (1 - confidence) / 2
        (time_us, low, high), (base_us, base_low, base_high) = (arm.interval(each) for arm in (self, baseline))
        ratio = time_us / base_us
        return Ratio(ratio, max(low / base_high, ratio / _FAR), min(high / base_low, ratio * _FAR))

    @property
    def least_us(self) -> list[float]:
        """What the blocks would have taken at least."""
        return [time * (1 - lost) for time, lost in zip(self.times_us, self.lost or (), strict=True)]

    def _picked(self, places: Sequence[int]) -> Blocks:
        return Blocks([self.times_us[place] for place in places], [self.lost[place] for place in places if self.lost])

    def _paired(self, baseline: Blocks, confidence: float) -> Ratio:
        ratio = statistics.paired_ratio(self.times_us, baseline.times_us, confidence).ratio
        low = statistics.paired_ratio(self.least_us, baseline.times_us, confidence).low
        return Ratio(ratio, low, statistics.paired_ratio(self.times_us, baseline.least_us, confidence).high)
