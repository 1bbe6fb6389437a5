"""What is known of a column that others disturbed: whether they did, who, and bounds on the times of a quiet machine.

A thread that waits for a processor delays its block by no more than its wait, and perhaps not at all: nobody may have waited
for it. So a block would have taken its time less all waits at least. It would have taken its time at most, less what it stood
still for certain. Pairs of blocks whose bounds are close decide where there are enough. Else each arm's least doubtful blocks
do, pairs or not: the bounds of any block hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, inf, sqrt
from statistics import median

from pytest_ecornn.results import formatting, statistics
from pytest_ecornn.results.rows import BaselineRatio, Disturbance, Timing
from pytest_ecornn.results.statistics import CONFIDENCE, MIN_PAIRS, Ratio

CALM = 0.05  # of a block's time: what its threads may wait, for others, in a block that counts as undisturbed
_DISTURBED_BLOCKS = 0.1  # of all; a median does not feel fewer
_OTHERS = 0.03  # of the processors that a row may use: what others take at least where threads wait for them
_MENTIONED = 0.1  # of them: what others take where it is said, though no thread waited
_UNSEEN = 0.2  # of our own work, by threads whose waits are not known
_OUTSIDE = 0.05  # of the time: what the hypervisor or a quota may take, and others of a GPU
_TICK_SECONDS = 0.01  # the system counts others' work by these
_TICKS = 3.0  # a processor, by which a count may be off
_MOST_LOST = 0.999  # of a block, so that its bounds are numbers
_REFILLING = 0.1  # of a disturbed block's work, which fetching again what others drove from the caches may have cost
_QUIET_NOISE = 0.05  # of a block, at least
_DEVIATIONS = 4.4  # of the median of so many blocks, in standard deviations of one over the root of their number
_UNBOUNDED = 7.0  # a thousandth to a thousand times: what too few blocks say


def is_disturbed(disturbance: Disturbance | None) -> bool:
    """Whether others may have shaped a column's times. Threads' waits alone do not tell: they wait for each other as well."""
    if disturbance is None:
        return False
    is_waiting = disturbance.disturbed > _DISTURBED_BLOCKS * disturbance.blocks
    least = _OTHERS if is_waiting else inf if knows_waits(disturbance) else _MENTIONED
    return _others(disturbance) > least or outside_share(disturbance) > _OUTSIDE


def knows_waits(disturbance: Disturbance) -> bool:
    """Whether all of the threads were seen that may have waited."""
    return disturbance.blocks > 0 and disturbance.unseen <= _UNSEEN


def _others(disturbance: Disturbance) -> float:
    """The share of the processors that other processes took; 0 where the system's counts are too coarse to tell."""
    share = disturbance.others / max(1, disturbance.processors)
    return share if share * disturbance.seconds > _TICKS * _TICK_SECONDS else 0.0


def outside_share(disturbance: Disturbance) -> float:
    """Share of every block's time lost to the hypervisor, a quota or other processes on the GPU, at most 1."""
    return min(1.0, disturbance.stolen / max(1, disturbance.processors) + disturbance.throttled + disturbance.gpu)


def describe(timing: Timing | None) -> str:
    """One sentence on a column that others disturbed, or might have; empty for others."""
    disturbance = timing.disturbance if timing else None
    if disturbance is None or not (is_disturbed(disturbance) or _others(disturbance) > _MENTIONED):
        return ""
    processors = formatting.count(disturbance.processors, "processor")
    used = [
        (disturbance.others, f"other processes took {disturbance.others:.1f} of {processors}"),
        (disturbance.stolen, f"the hypervisor took {disturbance.stolen:.1f} of {processors}"),
        (disturbance.throttled, f"a quota held the process for {disturbance.throttled:.0%} of the time"),
        (disturbance.gpu, f"other processes took {disturbance.gpu:.0%} of the GPU"),
    ]
    causes = ", ".join(words for amount, words in used if amount >= 0.05)
    share = f"{disturbance.disturbed / max(1, disturbance.blocks):.0%}"
    return f"{share} of blocks disturbed: {causes or 'threads waited for a processor'}"


@dataclass(frozen=True)
class TimedBlockBounds:
    """Upper and lower bounds on the time of each of an arm's blocks on a quiet machine, in order."""

    most_us: Sequence[float]
    least_us: Sequence[float]
    is_certain: bool = False

    @classmethod
    def of(
        cls, times_us: Sequence[float], lost: Sequence[float], delayed: Sequence[float], disturbance: Disturbance | None
    ) -> TimedBlockBounds:
        """Builds the bounds from the shares of each block that others may have cost at most and for certain.

        All may have been lost, where nobody knows the waits. Raises ValueError where the shares are of other blocks.
        """
        if disturbance is None or not is_disturbed(disturbance):
            return cls(times_us, times_us, is_certain=True)
        if not lost or not knows_waits(disturbance):
            lost, delayed = [1.0] * len(times_us), [0.0] * len(times_us)
        outside = outside_share(disturbance)
        shares = zip(times_us, lost, delayed, strict=True)
        bounds = [(time * (1 - _within(sure)), time * (1 - _at_most(share, outside))) for time, share, sure in shares]
        return cls([most for most, _ in bounds], [least for _, least in bounds])

    @classmethod
    def joined(cls, several: Sequence[TimedBlockBounds]) -> TimedBlockBounds:
        """The blocks of several measurements."""
        most_us = [us for one in several for us in one.most_us]
        least_us = [us for one in several for us in one.least_us]
        return cls(most_us, least_us, all(one.is_certain for one in several))

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
        """(median, low, high) of the time. Unless all blocks are certain, of the least doubtful ones, whatever the confidence.

        Each of these bounds the time but for its noise, which the medians have less of.
        """
        if self.is_certain:
            return statistics.median_interval(self.most_us, confidence)
        ranked = sorted(range(len(self.most_us)), key=self._doubt)
        counts = range(min(MIN_PAIRS, len(ranked)), len(ranked) + 1)
        count = min(counts, key=lambda count: self._doubt(ranked[count - 1]) + 2 * _noise(_QUIET_NOISE, count))
        selected = self._picked(ranked[:count])
        width = min(map(_spread, (selected.most_us, selected.least_us)))
        noise = exp(_noise(width, count) if count >= MIN_PAIRS else _UNBOUNDED)
        low, high = median(selected.least_us), median(selected.most_us)
        return high, low / noise, high * noise

    def ratio_to(self, baseline: TimedBlockBounds, confidence: float = CONFIDENCE) -> Ratio:
        """Returns the ratio, with an interval that holds whatever the waits cost.

        Raises ValueError as `statistics.paired_ratio` does.
        """
        if self.is_certain and baseline.is_certain:
            return statistics.paired_ratio(self.most_us, baseline.most_us, confidence)
        pairs = range(min(len(self.most_us), len(baseline.most_us)))
        calm = [position for position in pairs if max(self._doubt(position), baseline._doubt(position)) <= CALM]
        if len(calm) >= MIN_PAIRS:
            return self._picked(calm)._paired(baseline._picked(calm), confidence)
        (time_us, low, high), (base_us, base_low, base_high) = self.interval(), baseline.interval()
        return Ratio(time_us / base_us, low / base_high, high / base_low)

    def _doubt(self, place: int) -> float:
        """The share of a block's time that it is not known to have needed."""
        return 1 - self.least_us[place] / self.most_us[place]

    def _picked(self, places: Sequence[int]) -> TimedBlockBounds:
        return TimedBlockBounds(
            [self.most_us[position] for position in places], [self.least_us[position] for position in places]
        )

    def _paired(self, baseline: TimedBlockBounds, confidence: float) -> Ratio:
        ratio = statistics.paired_ratio(self.most_us, baseline.most_us, confidence).ratio
        low = statistics.paired_ratio(self.least_us, baseline.most_us, confidence).low
        return Ratio(ratio, low, statistics.paired_ratio(self.most_us, baseline.least_us, confidence).high)


def ratio_of(timing: Timing, against: BaselineRatio, confidence: float) -> Ratio:
    """A column's ratio to one of its baselines, from their blocks or by processes.

    Raises ValueError as `TimedBlockBounds.ratio_to` and `of_replicates` do.
    """
    own, baseline = (
        TimedBlockBounds.of(blocks.samples_us, blocks.lost, blocks.delayed, timing.disturbance) for blocks in (timing, against)
    )
    if not against.replicates:
        return own.ratio_to(baseline, confidence)
    ratio = statistics.of_replicates(against.replicates, confidence)
    if own.is_certain and baseline.is_certain:
        return ratio
    blocks = own.ratio_to(baseline, confidence)  # processes that are disturbed alike agree on what is wrong
    low, high = min(1.0, blocks.low / ratio.ratio), max(1.0, blocks.high / ratio.ratio)
    return replace(ratio, low=ratio.low * low, high=ratio.high * high)


def _at_most(lost: float, outside: float) -> float:
    """The share of a block that may have been lost, with what was taken from all blocks alike."""
    work = (1 - _within(lost)) * (1 - _within(outside))
    return 1 - (work if lost <= CALM else work * (1 - _REFILLING))


def _noise(spread: float, count: int) -> float:
    """Bounds the error of the logarithm of a median of so many blocks."""
    return _DEVIATIONS * max(spread, _QUIET_NOISE) / sqrt(count)


def _spread(times_us: Sequence[float]) -> float:
    """Spread of the times' logarithms. The lesser spread of two bounds is mostly noise: its waits vary less."""
    return statistics.pair_noise(times_us, [1.0] * len(times_us))


def _within(share: float) -> float:
    return min(_MOST_LOST, share)
