"""Axes: where a value lies, and which ticks an axis has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, log10

from pytest_ecornn.reporting.pictures.text_width import width

_FACTORS = (1, 2, 5)
_SMALLEST, _LARGEST = 1e-100, 1e100  # values that have a place
_BETWEEN_LABELS = 4  # pixels


@dataclass(frozen=True)
class LogAxis:
    """Maps values from low to high to pixels from start to end, so that equal ratios are equal distances."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return self.start + share * (self.end - self.start)

    def clamp(self, value: float) -> float:
        """Returns the value, or the end of the axis that it lies beyond."""
        return min(max(value, self.low), self.high)


def has_place(*values: float) -> bool:
    """Whether a logarithmic axis has a place for all of them."""
    return all(_SMALLEST <= value <= _LARGEST for value in values)


def powers_of_ten(low: float, high: float) -> list[float]:
    """Returns those from low to high."""
    return [10.0**power for power in range(ceil(log10(low)), floor(log10(high)) + 1)]


def enclosing_ticks(low: float, high: float, max_ticks: int = 9) -> list[float]:
    """Returns ticks of which the first is at most low and the last at least high, two or more.

    They are ones, twos and fives of powers of ten, or where those are too many, powers of ten at equal steps, 1 among them.
    """
    first, last = floor(log10(low)), ceil(log10(high))
    first, last = first - (10.0**first > low), last + (10.0**last < high)  # log10 rounds
    fine = [factor * 10.0**power for power in range(first, last + 1) for factor in _FACTORS]
    below, above = [tick for tick in fine if tick <= low], [tick for tick in fine if tick >= high]
    ticks = [tick for tick in fine if max(below) <= tick <= min(above)]
    if len(ticks) == 1:
        return [ticks[0], fine[fine.index(ticks[0]) + 1] if ticks[0] != fine[-1] else 2 * ticks[0]]
    if len(ticks) <= max_ticks:
        return ticks
    step = ceil((last - first) / (max_ticks - 2))
    return [10.0**power for power in range(step * floor(first / step), step * ceil(last / step) + 1, step)]


def labels_with_room(labels: Iterable[tuple[float, str]], size: float) -> list[tuple[float, str]]:
    """Returns the labels, each with the middle of its place, that do not overlap one before them."""
    shown: list[tuple[float, str]] = []
    for x, label in labels:
        if all(abs(x - at) >= (width(label, size) + width(other, size)) / 2 + _BETWEEN_LABELS for at, other in shown):
            shown.append((x, label))
    return shown
