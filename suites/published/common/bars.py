"""Bars that a measured figure has to reach, judged by its whole interval, not by its middle alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, fsum, log

from pytest_ecornn.results.formatting import ratio_interval
from pytest_ecornn.results.statistics import Ratio

YES, NO, UNCLEAR = "yes", "no", "unclear"  # the bar lies within the interval
Times = tuple[float, float, float]  # median, low, high


def geometric_mean(values: Sequence[float]) -> float:
    """Raises ValueError for none, and for a value not above 0."""
    if not values or min(values) <= 0:
        raise ValueError(f"expected values above 0, got {list(values)}")
    return exp(fsum(map(log, values)) / len(values))


def mean_ratio(ratios: Sequence[Ratio]) -> Ratio:
    """Geometric, its bounds those of the bounds: wider than its interval, as not all ratios are off the same way."""
    middles, lows, highs = zip(*((one.ratio, one.low, one.high) for one in ratios), strict=True)
    return Ratio(*(geometric_mean(values) for values in (middles, lows, highs)))


@dataclass(frozen=True)
class MinTarget:
    """A ratio has to be `limit` at least."""

    limit: float

    def __str__(self) -> str:
        return f"at least {self.limit:.3g}"

    def is_met(self, ratio: Ratio) -> str:
        if ratio.low >= self.limit:
            return YES
        return NO if ratio.high < self.limit else UNCLEAR


@dataclass(frozen=True)
class MaxTarget:
    """A figure has to be `limit` at most."""

    limit: float

    def __str__(self) -> str:
        return f"at most {self.limit:.3g}"

    def is_met(self, found: Times) -> str:
        """found: the figure and its interval."""
        _, low, high = found
        if high <= self.limit:
            return YES
        return NO if low > self.limit else UNCLEAR


def format_ratio(ratio: Ratio | None) -> str:
    """The ratio with its interval, or a dash."""
    return ratio_interval(ratio.ratio, ratio.low, ratio.high) if ratio else "-"
