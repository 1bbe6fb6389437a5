"""Medians with intervals, and the verdict on two implementations from paired blocks.

The ratio is the median of the pairs' ratios, its interval two order statistics of them: exact for independent pairs of
any distribution, with neither random numbers nor an assumption of symmetry. It was chosen by simulation (the noise of
tests/results/test_statistics.py at 4 % a pair, a look after every pair, 99 %): the bootstrap of the median covers 98 %
there, this one over 99 %; where 15 % of one side's blocks are outliers, Hodges-Lehmann covers 78 % and the ratio of medians
leaves 21 % of equal pairs unclear after 100, this one 95 % and 1 %. A verdict needs the whole interval on one side of a
margin, so repeated looks cost no false ones; only a true ratio on the margin itself is covered less (95 % after 100 looks).

Where several processes measured a ratio, Student's interval of theirs holds what differs from process to process as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import atan, comb, cos, exp, inf, log, pi, sin, sqrt
from statistics import fmean
from typing import Literal

import numpy as np

Verdict = Literal["faster", "slower", "same", "unclear"]

# The relative difference under which two times are the same, as called and by replay, which the host's unsteadiness spares.
EQUIVALENCE_MARGINS = {"timing": 0.05, "replay": 0.015}
CONFIDENCE = 0.99
MIN_REPLICATES = 3
MIN_PAIRS = 8  # the fewest whose extremes bound the median with 99 %: 1 - 2 / 2**8
FAMILYWISE_ERROR = 0.05  # the chance that any interval of a run misses its ratio, at most
_MIN_RATIO_PAIRS = 3
_MAD_TO_SIGMA = 1.4826  # a normal distribution's standard deviation, over its median distance from its median


@dataclass(frozen=True)
class Ratio:
    """The candidate's time over the baseline's, and the interval that it lies in."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class ReplicatedRatio(Ratio):
    """A ratio that several processes measured. replicates: in each of them."""

    replicates: tuple[float, ...]


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """(median, low, high) of independent samples, the bounds two of them.

    Under 8 samples (at 99 %) the bounds are the extremes, which hold the median with 1 - 2 / 2**n: 94 % of 5.
    Raises ValueError for none, and for a confidence outside 0 to 1.
    """
    if not len(samples):
        raise ValueError("expected at least one sample, got none")
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    order = _rank(len(ordered), confidence)
    return float(np.median(ordered)), float(ordered[order]), float(ordered[-1 - order])


def paired_ratio(candidate: Sequence[float], baseline: Sequence[float], confidence: float = CONFIDENCE) -> Ratio:
    """The median of candidate[i] / baseline[i], times of blocks that ran side by side.

    Where the extremes of few pairs promise too little, the interval reaches further, by `_extrapolation_factor` of its own
    widths. Raises ValueError for fewer than 3 pairs, unequal numbers, or a time not above 0.
    """
    if len(candidate) != len(baseline) or len(candidate) < _MIN_RATIO_PAIRS:
        raise ValueError(f"expected at least {_MIN_RATIO_PAIRS} pairs, got {len(candidate)} and {len(baseline)} times")
    times = np.asarray([candidate, baseline], dtype=np.float64)
    if not (np.isfinite(times) & (times > 0)).all():
        raise ValueError(f"expected times above 0, got {times.min()}")
    return Ratio(*reaching_interval((times[0] / times[1]).tolist(), confidence))


def reaching_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Returns `median_interval` of samples above 0; for few, it extends beyond the extremes as far as needed.

    Raises ValueError for fewer than 3.
    """
    if len(samples) < _MIN_RATIO_PAIRS:
        raise ValueError(f"expected at least {_MIN_RATIO_PAIRS} times, got {len(samples)}")
    median, low, high = median_interval(np.log(samples).tolist(), confidence)
    wider = (high - low) * _extrapolation_factor(len(samples), confidence)
    median, low, high = (float(np.exp(value)) for value in (median, low - wider, high + wider))
    return median, low, high


def of_replicates(values: Sequence[float], confidence: float = CONFIDENCE) -> ReplicatedRatio:
    """Geometric mean of values above 0, one of each process, with Student's interval of their logarithms.

    Raises ValueError for fewer than 3, and for a value not above 0.
    """
    if len(values) < MIN_REPLICATES or not all(0 < value < inf for value in values):
        raise ValueError(f"expected at least {MIN_REPLICATES} values above 0, got {list(values)}")
    mean = fmean(map(log, values))
    half_width = _half_width(confidence, values)
    return ReplicatedRatio(exp(mean), exp(mean - half_width), exp(mean + half_width), tuple(values))


def change(then: Ratio, now: Ratio, confidence: float) -> Ratio:
    """The ratio now over the ratio then, both with intervals of the confidence.

    Its interval goes from end to opposite end. Where several processes measured, Student's interval of the difference of their
    samples replaces their own; a single process, then or now, is one more of the others, beside its own interval.
    """
    low, high = now.low / then.high, now.high / then.low
    if samples := [one.replicates for one in (then, now) if isinstance(one, ReplicatedRatio)]:
        joint = _half_width(confidence, *samples, single=len(samples) == 1)
        wider = exp(joint - sum(_half_width(confidence, sample) for sample in samples))
        low, high = low / wider, high * wider
    return Ratio(now.ratio / then.ratio, low, high)


def _half_width(confidence: float, *samples: Sequence[float], single: bool = False) -> float:
    """Half of Student's interval of a mean of logarithms, or of two means' difference.

    single: of the difference between the mean and one more value.
    """
    logs = [[log(value) for value in sample] for sample in samples]
    freedom = sum(len(sample) - 1 for sample in logs)
    squares = sum((value - fmean(sample)) ** 2 for sample in logs for value in sample)
    share = sum(1 / len(sample) for sample in logs) + single
    return student(confidence, freedom) * sqrt(squares / freedom * share)


@lru_cache(maxsize=256)
def student(confidence: float, freedom: int) -> float:
    """How many standard errors around the mean hold it with the confidence: Student's t, two-sided, of so many degrees."""
    low, high = 0.0, 1.0
    while _student_within(high, freedom) < confidence:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_within(middle, freedom) < confidence else (low, middle)
    return high


def _student_within(t: float, freedom: int) -> float:
    """The chance of a value within -t to t: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4."""
    angle, is_odd = atan(t / sqrt(freedom)), freedom % 2
    term = total = cos(angle) if is_odd else 1.0
    for number in range(2 + is_odd, freedom - 1, 2):
        term *= (number - 1) / number * cos(angle) ** 2
        total += term
    if is_odd:
        return 2 / pi * (angle + (sin(angle) * total if freedom > 1 else 0.0))
    return sin(angle) * total


def pair_noise(candidate: Sequence[float], baseline: Sequence[float]) -> float:
    """The noise of a pair: the standard deviation of the log ratios, by their median distance from their median."""
    ratios = np.log(np.asarray(candidate, dtype=np.float64) / np.asarray(baseline, dtype=np.float64))
    return float(_MAD_TO_SIGMA * np.median(np.abs(ratios - np.median(ratios))))


def verdict(ratio: Ratio, equivalence_margin: float) -> Verdict:
    """Returns the verdict of the whole interval: beyond the smallest difference on one side, within it, or neither."""
    bound = 1.0 + equivalence_margin
    if ratio.low > bound:
        return "slower"
    if ratio.high < 1.0 / bound:
        return "faster"
    if 1.0 / bound <= ratio.low and ratio.high <= bound:
        return "same"
    return "unclear"


def per_comparison_confidence(verdicts: int) -> float:
    """Confidence of each interval so that all verdicts hold jointly (Bonferroni's correction); at least `CONFIDENCE`."""
    return max(CONFIDENCE, 1.0 - FAMILYWISE_ERROR / max(1, verdicts))


def is_conclusive(verdict: str) -> bool:
    """Whether more pairs are not needed."""
    return verdict != "unclear"


def _extrapolation_factor(count: int, confidence: float) -> float:
    """How many of their own widths the extremes must be moved apart, each, to hold the median with the confidence.

    All n samples lie on one side of it, f widths away, with 2^-n (1 + f)^(1 - n) where they are uniform around it; less
    often where they are normal or heavy-tailed, and up to 2.6 times as often where the density breaks off at the median.
    """
    return max(0.0, float((0.5**count / ((1.0 - confidence) / 2)) ** (1.0 / (count - 1))) - 1.0)


@lru_cache(maxsize=4096)
def _rank(count: int, confidence: float) -> int:
    """How many samples to leave out at each end: the most that a fair coin allows, none where it allows too few."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"expected a confidence between 0 and 1, got {confidence}")
    order, tail = 0, 1
    while order + 1 < count / 2:
        tail += comb(count, order + 1)
        if tail / 2**count > (1.0 - confidence) / 2:
            break
        order += 1
    return order
