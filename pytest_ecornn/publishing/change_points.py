"""Steps in the history of a time: where its level changed from one run to the next, and stayed changed.

A step is marked where a t test of the mean logarithm before and after it is significant after Bonferroni's correction for all
tests of a page, where the level changed by 2 % at least, and where a step fits better than a steady drift. The test takes
logarithms as normal. The noise is the largest of what remains within the two levels, the differences of runs up to four apart
elsewhere, and what the runs' own intervals say; where runs that are near each other differ less than others, it counts fewer of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import atan2, cos, exp, log, pi, sin, sqrt

import numpy as np
from numpy.typing import NDArray

SIGNIFICANCE = 0.01  # the chance that any mark of a page is false, at most
SMALLEST = 0.02  # change of a level that is marked
MIN_RUNS = 4  # on either side of a step
_LAGS = (1, 2, 3, 4)  # between runs whose differences are the noise
_BETTER_THAN_DRIFT = log(20.0)  # likelihood of a step over that of a drift
_NEAR = 8  # runs on either side that tell a step from a drift
_WINDOWS = (_NEAR, 10**9)  # runs on either side whose levels are compared: near ones, and all
_Z = 2.5758  # an interval of 99 % reaches so many standard deviations from its middle

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """The first run of the new level, and its ratio to the level before, with an interval that holds for all marks at once."""

    run: int
    ratio: float
    low: float
    high: float


def places(runs: int) -> int:
    """Returns the number of tests that are made of so many runs, and as many again for the parts that a step leaves."""
    return 2 * len(_WINDOWS) * max(0, runs - 2 * MIN_RUNS + 1)


def steps(times: Sequence[float], intervals: Sequence[tuple[float, float]], looked_at: int) -> list[Step]:
    """Returns the steps of a row, in order. times: above 0, one a run. looked_at: `places` of all rows of the page."""
    logarithms = np.log(np.asarray(times, dtype=np.float64))
    widths = np.log([high / low for low, high in intervals]) if len(times) else np.zeros(0)
    return _steps(logarithms, np.asarray(widths) / (2 * _Z), max(1, looked_at), 0)


def _steps(values: Values, errors: Values, looked_at: int, first: int) -> list[Step]:
    """Splits at the most significant step, and then each side of it."""
    every = (_split(values, errors, at, reach) for at in range(MIN_RUNS, len(values) - MIN_RUNS + 1) for reach in _WINDOWS)
    likely = (split for split in every if split.chance * looked_at < SIGNIFICANCE)
    splits = (_Split(one.at, one.before, one.after, one.errors, *_noise(values, one.at)) for one in likely)
    found = min(splits, key=lambda split: split.chance, default=None)
    if found is None or not found.is_marked(looked_at):
        return []
    before = _steps(values[: found.at], errors[: found.at], looked_at, first)
    after = _steps(values[found.at :], errors[found.at :], looked_at, first + found.at)
    return [*before, found.step(first, looked_at), *after]


@dataclass(frozen=True)
class _Split:
    """Logarithms before and after a place, and the standard error of each by its interval.

    noise: variance of a run by the differences of runs on one side of the place, of the whole row. share: of the runs that
    count as independent.
    """

    at: int
    before: Values
    after: Values
    errors: Values
    noise: float = 0.0
    share: float = 1.0

    @property
    def degrees(self) -> int:
        return len(self.before) + len(self.after) - 2

    @cached_property
    def change(self) -> float:
        return float(self.after.mean() - self.before.mean())

    @cached_property
    def residual(self) -> float:
        """The sum of squares within the two levels."""
        return float(((self.before - self.before.mean()) ** 2).sum() + ((self.after - self.after.mean()) ** 2).sum())

    @cached_property
    def error(self) -> float:
        """The standard error of the change."""
        variance = max(self.residual / self.degrees, self.noise, float(np.mean(self.errors**2)))
        return sqrt(variance / self.share * (1 / len(self.before) + 1 / len(self.after)))

    @cached_property
    def chance(self) -> float:
        """The chance of such a change where there is none."""
        if self.error:
            return two_sided_p(self.change / self.error, self.degrees)
        return 0.0 if self.change else 1.0

    def is_marked(self, looked_at: int) -> bool:
        is_large = abs(exp(self.change) - 1) >= SMALLEST
        return self.chance * looked_at < SIGNIFICANCE and is_large and self.is_step()

    def is_step(self) -> bool:
        """Whether a step fits the runs around the place much better than a straight line."""
        reach = min(len(self.before), len(self.after), _NEAR)
        near = _Split(reach, self.before[-reach:], self.after[:reach], self.errors)
        values, runs = np.concatenate([near.before, near.after]), np.arange(2 * reach)
        line = float(((values - np.polyval(np.polyfit(runs, values, 1), runs)) ** 2).sum())
        return near.residual == 0 or (line > 0 and reach * log(line / near.residual) > _BETTER_THAN_DRIFT)

    def step(self, first: int, looked_at: int) -> Step:
        reach = self.error * quantile(SIGNIFICANCE / looked_at, self.degrees)
        return Step(first + self.at, exp(self.change), exp(self.change - reach), exp(self.change + reach))


def _split(values: Values, errors: Values, at: int, reach: int) -> _Split:
    """reach: of runs on either side."""
    start, end = max(0, at - reach), at + reach
    return _Split(at, values[start:at], values[at:end], errors[start:end])


def _noise(values: Values, at: int) -> tuple[float, float]:
    """Returns the variance of a run by differences at several lags, and the share of runs that count as independent.

    Differences across the place are left out, and those across one other, where they are the largest: of another step.
    """
    variances = np.zeros((len(_LAGS), len(values) + 1))  # a column for each other place
    for row, lag in enumerate(_LAGS):
        squares, across = (values[lag:] - values[:-lag]) ** 2, _across(len(values), lag)
        kept = ~(across | across[at])
        counts = kept.sum(1)
        variances[row] = np.divide(kept @ squares, 2 * counts, out=np.zeros(len(values) + 1), where=counts > 0)
    largest = variances.max(0)
    ratios = np.divide(variances[0], largest, out=np.ones_like(largest), where=largest > 0)
    shares = ratios / (2 - ratios)  # (1 - c) / (1 + c) of the correlation c of neighbours
    best = int(np.argmin(np.divide(largest, shares, out=np.zeros_like(largest), where=shares > 0)))
    return float(largest[best]), float(shares[best]) or 1.0


@lru_cache(maxsize=1024)
def _across(runs: int, lag: int) -> NDArray[np.bool_]:
    """Returns a mask [runs + 1, runs - lag]: whether a difference of runs `lag` apart lies across a place."""
    places, first = np.arange(runs + 1)[:, None], np.arange(runs - lag)[None]
    return (first < places) & (places <= first + lag)


def two_sided_p(t: float, degrees: int) -> float:
    """Returns the chance that Student's t is further from 0. Source: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = atan2(abs(t), sqrt(degrees))
    cosine, is_odd = cos(angle), degrees % 2
    term, total = (cosine if is_odd else 1.0), 0.0
    for power in range(3 if is_odd else 2, degrees, 2):
        total += term
        term *= cosine**2 * (power - 1) / power
    if degrees > 1:
        total += term
    within = 2 / pi * (angle + sin(angle) * total) if is_odd else sin(angle) * total
    return max(0.0, 1.0 - within)


def quantile(chance: float, degrees: int) -> float:
    """Returns the t that is exceeded in size with this chance, by bisection."""
    low, high = 0.0, 1.0
    while two_sided_p(high, degrees) > chance and high < 1e9:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, degrees) > chance else (low, middle)
    return high
