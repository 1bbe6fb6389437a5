"""Points of a picture, each of a row, by implementation: as the static picture and `pictures.js` take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

from pytest_ecornn.reporting import standing
from pytest_ecornn.reporting.pictures.palette import series_colour
from pytest_ecornn.results.rows import Row, Timing

Series = dict[str, list["Point"]]  # by implementation, in the order of their colours


@dataclass(frozen=True)
class Picture:
    """One picture, with its title. data: the same as columns of JSON; times are those of the rows."""

    title: str
    svg: str
    data: Mapping[str, Any]


class Point(NamedTuple):
    """A row's place. number: of the row among the details."""

    number: int
    row: Row
    timing: Timing
    x: float
    y: float


def by_implementation(points: Sequence[Point]) -> Series:
    """Returns the points of each implementation, in their order."""
    names = standing.implementations(point.row for point in points)
    return {name: [point for point in points if point.row.implementation == name] for name in names}


def columns(axes: Sequence[str], series: Series) -> dict[str, Any]:
    """Returns names of the axes, and for each implementation a colour, rows by number, and each row's x."""
    return {
        "axes": list(axes),
        "colours": [series_colour(number) for number in range(1, len(series) + 1)],
        "rows": [[point.number for point in points] for points in series.values()],
        "x": [[_rounded(point.x) for point in points] for points in series.values()],
    }


def _rounded(x: float) -> float | None:
    """Returns a size as it is, and what is no whole number rounded."""
    return x if isinstance(x, int) else rounded(x)


def rounded(value: float, digits: int = 4) -> float | None:
    """Returns the value to that many digits, None where it is no number."""
    return float(f"{value:.{digits}g}") if isfinite(value) else None
