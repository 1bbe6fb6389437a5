"""Curves of time over T, B or H: cases that differ in one size alone, a line for each implementation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pytest_ecornn.contract import Case
from pytest_ecornn.reporting import standing
from pytest_ecornn.reporting.pictures.log_plot import Line, log_plot
from pytest_ecornn.results.rows import Row, Timing

_DIMENSIONS = {"T": "steps", "B": "batch", "H": "hidden_size"}
_NAMES = {"T": "time steps", "B": "sequences", "H": "hidden units"}
_MIN_SIZES = 3  # that make a curve
MAX_CURVES = 24


@dataclass(frozen=True)
class Curve:
    """One picture, with its title."""

    title: str
    svg: str


def parsed_case(row: Row) -> Case | None:
    """The row's case, None of a later version's or of what is no case."""
    try:
        return Case.parse(row.case)
    except ValueError:
        return None


def of_rows(rows: Sequence[Row], unproven: Collection[standing.Key]) -> tuple[list[Curve], int]:
    """Returns curves by column of times and dimension, those of most sizes first, and how many are left out."""
    found = [
        (len({point.size for point in family}), _curve(name, column, dimension, family))
        for column in (standing.columns(rows) if rows else ())
        for dimension in _DIMENSIONS
        for name, family in _families(rows, unproven, column, dimension)
    ]
    ordered = [curve for _, curve in sorted(found, key=lambda one: -one[0])]
    return ordered[:MAX_CURVES], max(0, len(ordered) - MAX_CURVES)


class _Point(NamedTuple):
    size: int
    row: Row
    timing: Timing


def _families(
    rows: Sequence[Row], unproven: Collection[standing.Key], column: str, dimension: str
) -> Iterator[tuple[str, list[_Point]]]:
    """Yields a name and the points of cases that differ in one dimension alone."""
    families: dict[Case, list[_Point]] = {}
    for row in rows:
        timing, case = standing.is_publishable(row, unproven, column), parsed_case(row)
        if timing and case:
            point = _Point(getattr(case, _DIMENSIONS[dimension]), row, timing)
            families.setdefault(_without(case, dimension), []).append(point)
    for case, family in families.items():
        if len({point.size for point in family}) >= _MIN_SIZES:
            tokens = str(case).split("-")
            yield "-".join(token for token in tokens if token != f"{dimension}1"), family


def _without(case: Case, dimension: str) -> Case:
    """Returns the case with that size 1; the input size too, where it is the hidden size."""
    sizes = {_DIMENSIONS[dimension]: 1}
    if dimension == "H" and case.input_size == case.hidden_size:
        sizes["input_size"] = 1
    return replace(case, **sizes)  # type: ignore[arg-type]


def _curve(name: str, column: str, dimension: str, family: Sequence[_Point]) -> Curve:
    names = standing.implementations(point.row for point in family)
    lines = [
        _line(of_name, [point for point in family if point.row.implementation == of_name], number)
        for number, of_name in enumerate(names, 1)
    ]
    title = f"{name}, {standing.COLUMNS[column]}"
    return Curve(title, log_plot(title, f"{dimension}, {_NAMES[dimension]}", "us a call", lines).inline())


def _line(name: str, family: Sequence[_Point], colour: int) -> Line:
    """Times with their intervals, by size."""
    timings = [(point.size, point.timing) for point in sorted(family, key=lambda point: point.size)]
    points = [(size, timing.time_us) for size, timing in timings]
    return Line(name, points, colour, intervals=[(timing.low_us, timing.high_us) for _, timing in timings])
