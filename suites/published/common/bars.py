"""Bars that a measured figure has to reach, judged by its whole interval, not by its middle alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from pytest_ecornn.results.formatting import ratio_interval
from pytest_ecornn.results.statistics import Ratio

YES, NO, UNCLEAR = "yes", "no", "unclear"  # the bar lies within the interval
Times = tuple[float, float, float]  # median, low, high


def mean_ratio(ratios: Sequence[Ratio]) -> Ratio:
    """Geometric, its bounds those of the bounds: wider than its interval, as not all ratios are off the same way."""
    bounds = zip(*((ratio.ratio, ratio.low, ratio.high) for ratio in ratios), strict=True)
    return Ratio(*map(geometric_mean, bounds))


@dataclass(frozen=True)
class MinTarget:
    """A ratio has to be `limit` at least."""

    limit: float

    def __str__(self) -> str:
        return f"at least {self.limit:.3g}"

    def is_met(self, ratio: Ratio) -> str:
        return YES if ratio.low >= self.limit else NO if ratio.high < self.limit else UNCLEAR

    def cells(self, ratio: Ratio | None) -> tuple[str, str, str]:
        """Cells of a table: the ratio, the bar, and whether it holds."""
        return format_ratio(ratio), str(self), self.is_met(ratio) if ratio else "-"


@dataclass(frozen=True)
class MaxTarget:
    """A figure has to be `limit` at most."""

    limit: float

    def __str__(self) -> str:
        return f"at most {self.limit:.3g}"

    def is_met(self, figure: Times) -> str:
        _, low, high = figure
        return YES if high <= self.limit else NO if low > self.limit else UNCLEAR


def format_ratio(ratio: Ratio | None) -> str:
    """The ratio with its interval, or a dash."""
    return ratio_interval(ratio.ratio, ratio.low, ratio.high) if ratio else "-"
