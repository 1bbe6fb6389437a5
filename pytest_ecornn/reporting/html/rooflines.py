"""Rooflines: the rate of each row over its intensity, below what the machine was measured to reach."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import Any

from pytest_ecornn.reporting import standing
from pytest_ecornn.reporting.html.curves import parsed_case
from pytest_ecornn.reporting.html.points import Picture, Point, by_implementation, columns, rounded
from pytest_ecornn.reporting.pictures.axes import powers_of_ten
from pytest_ecornn.reporting.pictures.log_plot import Line, log_plot
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import Row

_MAX_DIGITS = 20  # of a working set's size
_AXES = ("operations a byte", "GFLOP/s")
_SPREAD = 2.0  # from the rows' intensities to the ends of the roofs


def of_rows(rows: Sequence[Row], unproven: Collection[standing.Key], ceilings: Mapping[str, Any]) -> list[Picture]:
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
