"""Curves of time over T, B or H: cases that differ in one size alone, a line for each implementation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from pytest_ecornn.contract import Case
from pytest_ecornn.reporting import standing
from pytest_ecornn.reporting.html.points import Picture, Point, by_implementation, columns
from pytest_ecornn.reporting.pictures.log_plot import Line, log_plot
from pytest_ecornn.results.rows import Row

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


def of_rows(rows: Sequence[Row], unproven: Collection[standing.Key]) -> tuple[list[Picture], int]:
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
