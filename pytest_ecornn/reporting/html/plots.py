"""Plots of report.html: curves of time over T, B or H, and rooflines, each point a row, as `pictures.js` takes them too.

A curve has cases that differ in one size alone. A roofline has the rate of each row over its intensity, below what the machine
was measured to reach.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, NamedTuple

from pytest_ecornn.contract import Case
from pytest_ecornn.reporting import standing
from pytest_ecornn.reporting.pictures.axes import powers_of_ten
from pytest_ecornn.reporting.pictures.log_plot import Line, log_plot
from pytest_ecornn.reporting.pictures.palette import series_colour
from pytest_ecornn.results import formatting
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


_DIMENSIONS = {"T": "steps", "B": "batch", "H": "hidden_size"}
_NAMES = {"T": "time steps", "B": "sequences", "H": "hidden units"}
_MIN_SIZES = 3  # that make a curve
MAX_CURVES = 24


def parsed_case(row: Row) -> Case | None:
    """The row's case, None of a later version's or of what is no case."""
    try:
        return Case.parse(row.case)
    except ValueError:
        return None


def curves_of(rows: Sequence[Row], unproven: Collection[standing.Key]) -> tuple[list[Picture], int]:
    """Returns curves by column of times and dimension, those of most sizes first, and how many are left out."""
    found = [
        (name, column, dimension, family)
        for column in (standing.columns(rows) if rows else ())
        for dimension in _DIMENSIONS
        for name, family in _families(rows, unproven, column, dimension)
    ]
    found.sort(key=lambda one: -len({point.x for point in one[3]}))
    return [_curve(*one) for one in found[:MAX_CURVES]], max(0, len(found) - MAX_CURVES)


def _families(
    rows: Sequence[Row], unproven: Collection[standing.Key], column: str, dimension: str
) -> Iterator[tuple[str, list[Point]]]:
    """Yields a name and the points of cases that differ in one dimension alone."""
    families: dict[Case, list[Point]] = {}
    for number, row in enumerate(rows):
        timing, case = standing.is_publishable(row, unproven, column), parsed_case(row)
        if timing and case:
            point = Point(number, row, timing, getattr(case, _DIMENSIONS[dimension]), timing.time_us)
            families.setdefault(_without(case, dimension), []).append(point)
    for case, family in families.items():
        if len({point.x for point in family}) >= _MIN_SIZES:
            tokens = str(case).split("-")
            yield "-".join(token for token in tokens if token != f"{dimension}1"), family


def _without(case: Case, dimension: str) -> Case:
    """Returns the case with that size 1; the input size too, where it is the hidden size."""
    sizes = {_DIMENSIONS[dimension]: 1}
    if dimension == "H" and case.input_size == case.hidden_size:
        sizes["input_size"] = 1
    return replace(case, **sizes)  # type: ignore[arg-type]


def _curve(name: str, column: str, dimension: str, family: Sequence[Point]) -> Picture:
    series = by_implementation(sorted(family, key=lambda point: point.x))
    lines = [_line(of_name, points, colour) for colour, (of_name, points) in enumerate(series.items(), 1)]
    title, axes = f"{name}, {standing.COLUMNS[column]}", (f"{dimension}, {_NAMES[dimension]}", "us a call")
    return Picture(title, log_plot(title, *axes, lines).inline(), {**columns(axes, series), "column": column})


def _line(name: str, points: Sequence[Point], colour: int) -> Line:
    """Times with their intervals."""
    intervals = [(point.timing.low_us, point.timing.high_us) for point in points]
    return Line(name, [(point.x, point.y) for point in points], colour, intervals=intervals)


_MAX_DIGITS = 20  # of a working set's size
_AXES = ("operations a byte", "GFLOP/s")
_SPREAD = 2.0  # from the rows' intensities to the ends of the roofs


def rooflines_of(rows: Sequence[Row], unproven: Collection[standing.Key], ceilings: Mapping[str, Any]) -> list[Picture]:
    """Returns a picture for each device and kind of product that has a ceiling. ceilings: a run's."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for number, row in enumerate(rows):
        timing = standing.is_publishable(row, unproven)
        if timing and timing.operations > 0 and timing.bytes > 0 and timing.gflop_per_s > 0:
            point = Point(number, row, timing, timing.operations / timing.bytes, timing.gflop_per_s)
            groups.setdefault((row.device.partition(":")[0], _products(row)), []).append(point)
    found = []
    for (device, products), of_group in groups.items():
        prefix = "cuda " if device == "cuda" else ""
        gflop_per_s = _rates(ceilings, f"{prefix}matmul_gflop_per_s").get(products)
        gb_per_s = _memory_rate(ceilings, prefix)
        if gflop_per_s and gb_per_s:
            found.append(_picture(f"{products} on {device}", of_group, gb_per_s, gflop_per_s))
    return found


def _rates(ceilings: Mapping[str, Any], name: str) -> dict[str, float]:
    """Returns a ceiling's rates by their names, as far as they are numbers above 0: a file may hold anything there."""
    found = ceilings.get(name)
    given = found.items() if isinstance(found, Mapping) else ()
    return {str(key): rate for key, rate in given if isinstance(rate, int | float) and isfinite(rate) and rate > 0}


def _products(row: Row) -> str:
    """Returns the dtype that products are computed in, or tf32."""
    case = parsed_case(row)
    return "tf32" if case and case.precision == "tf32" else row.dtype


def _memory_rate(ceilings: Mapping[str, Any], prefix: str) -> float | None:
    """Returns the rate in GB/s at the largest working set, beyond every cache."""
    points = [
        (int(size), rate)
        for name in ("copy", "read")
        for size, rate in _rates(ceilings, f"{prefix}{name}_points").items()
        if size.isdecimal() and size.isascii() and len(size) < _MAX_DIGITS
    ]
    return max(points)[1] if points else None


def _picture(title: str, timed: Sequence[Point], gb_per_s: float, gflop_per_s: float) -> Picture:
    series = by_implementation(timed)
    lines = [
        Line(name, [(point.x, point.y) for point in points], colour, is_joined=False)
        for colour, (name, points) in enumerate(series.items(), 1)
    ]
    intensities = [x for line in lines for x, _ in line.points]
    ridge = gflop_per_s / gb_per_s
    low, high = min(*intensities, ridge) / _SPREAD, max(*intensities, ridge) * _SPREAD
    roof = f"memory {formatting.significant(gb_per_s)} GB/s, products {formatting.significant(gflop_per_s)} GFLOP/s"
    lines.append(Line(roof, [(low, gb_per_s * low), (ridge, gflop_per_s), (high, gflop_per_s)], 0, is_dashed=True))
    ticks = powers_of_ten(low, high)
    rates = [[rounded(point.y) for point in points] for points in series.values()]
    data = {**columns(_AXES, series), "y": rates, "roof": [rounded(gb_per_s), rounded(gflop_per_s)]}
    return Picture(title, log_plot(title, *_AXES, lines, ticks).inline(), data)
