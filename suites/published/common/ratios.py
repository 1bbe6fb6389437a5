"""Ratios summed up: their geometric mean, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, fsum, log

from pytest_ecornn.results.statistics import Ratio


def geometric_mean(values: Sequence[float]) -> float:
    """Raises ValueError for none, and for a value not above 0."""
    if not values or min(values) <= 0:
        raise ValueError(f"expected values above 0, got {list(values)}")
    return exp(fsum(map(log, values)) / len(values))


def mean_ratio(ratios: Sequence[Ratio]) -> Ratio:
    """Geometric, its bounds those of the bounds: wider than its interval, as not all ratios are off the same way."""
    middles, lows, highs = zip(*((one.ratio, one.low, one.high) for one in ratios), strict=True)
    return Ratio(*(geometric_mean(values) for values in (middles, lows, highs)))
