"""Lines and points over two logarithmic axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from xml.etree.ElementTree import Element

from pytest_ecornn.reporting.pictures import svg
from pytest_ecornn.reporting.pictures.axes import LogAxis, enclosing_ticks, has_place, labels_with_room
from pytest_ecornn.reporting.pictures.palette import series_colour
from pytest_ecornn.reporting.pictures.text_width import width

# In pixels: the picture, and where its axes are.
_HEIGHT = 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 612, 44, 424
_LINE_SPACING = 19
_LINE_SAMPLE, _BEFORE_LABEL = 30, 54  # of the legend: a line's length, and from the axes to the texts
_MARGIN = 16
_MAX_TICKS = 10


@dataclass(frozen=True)
class Line:
    """Points (x, y) that are joined in this order; lines of one `colour`, a number from 1, belong together.

    intervals: of each point's y, from low to high; none where empty. is_joined: False of points that are no line.
    """

    label: str
    points: Sequence[tuple[float, float]]
    colour: int
    is_dashed: bool = False
    intervals: Sequence[tuple[float, float]] = ()
    is_joined: bool = True

    @property
    def shown(self) -> list[tuple[float, float]]:
        """The points that a logarithmic axis has a place for."""
        return [(x, y) for x, y in self.points if has_place(x, y)]

    @property
    def bars(self) -> list[tuple[float, float, float]]:
        """x, low and high of the points that are shown and have an interval with a place on the axis."""
        return [
            (x, low, high)
            for (x, y), (low, high) in zip(self.points, self.intervals, strict=False)
            if has_place(x, y, low, high) and low <= high
        ]


def log_plot(title: str, x_label: str, y_label: str, lines: Sequence[Line], x_ticks: Sequence[float] = ()) -> svg.Picture:
    """The picture; every x that has a point is a tick unless they are given. Raises ValueError where no point can be shown."""
    lines = [line for line in lines if line.shown]
    if not lines:
        raise ValueError(f"expected lines with points above 0, got none for {title!r}")
    xs = sorted({x for line in lines for x, _ in line.shown})
    ys = [y for line in lines for _, y in line.shown] + [y for line in lines for bar in line.bars for y in bar[1:]]
    ticks = enclosing_ticks(min(ys), max(ys), _MAX_TICKS)
    x_axis = LogAxis(xs[0] / 1.2, xs[-1] * 1.2, _LEFT, _RIGHT)
    y_axis = LogAxis(ticks[0], ticks[-1], _BOTTOM, _TOP)
    widths = [_RIGHT + _BEFORE_LABEL + width(line.label, svg.TEXT_SIZE) for line in lines]
    parts = [
        svg.text(_LEFT, 26, title, size=svg.TITLE_SIZE, is_bold=True),
        *_grid(x_axis, y_axis, x_ticks or xs, ticks),
        svg.text((_LEFT + _RIGHT) / 2, _HEIGHT - 14, x_label, anchor="middle"),
        svg.turned(20, (_TOP + _BOTTOM) / 2, y_label),
        *(part for line in lines for part in _drawn(line, x_axis, y_axis)),
        *_legend(lines),
    ]
    right = ceil(max(_LEFT + width(title, svg.TITLE_SIZE, is_bold=True), *widths)) + _MARGIN
    return svg.Picture(title, right, _HEIGHT, parts)


def _grid(x_axis: LogAxis, y_axis: LogAxis, xs: Sequence[float], ys: Sequence[float]) -> Iterator[Element]:
    yield svg.rectangle(_LEFT, _TOP, _RIGHT - _LEFT, _BOTTOM - _TOP, "", stroke="grid", role="frame")
    yield from (svg.line(x_axis(x), _TOP, x_axis(x), _BOTTOM) for x in xs)
    for position, label in labels_with_room([(x_axis(x), _number(x)) for x in xs], svg.TEXT_SIZE):
        yield svg.text(position, _BOTTOM + 20, label, anchor="middle")
    for y in ys:
        position = y_axis(y)
        yield svg.line(_LEFT, position, _RIGHT, position)
        yield svg.text(_LEFT - 8, position + svg.BASELINE * svg.TEXT_SIZE, _number(y), anchor="end")


def _number(value: float) -> str:
    return f"{value:,g}" if 1e-2 <= value < 1e6 else f"{value:.0e}"


def _drawn(line: Line, x_axis: LogAxis, y_axis: LogAxis) -> Iterator[Element]:
    points = [(x_axis(x), y_axis(y)) for x, y in line.shown]
    colour = series_colour(line.colour)
    if line.is_joined:
        yield svg.polyline(points, colour, width=2, dashes=_dashes(line))
    for x, low, high in line.bars:
        yield svg.line(x_axis(x), y_axis(low), x_axis(x), y_axis(high), colour, width=1.5, role="interval")
    yield from (_mark(line, x, y) for x, y in points)


def _legend(lines: Sequence[Line]) -> Iterator[Element]:
    """Legend to the right of the axes, from the line that ends highest to the one that ends lowest."""
    for number, line in enumerate(sorted(lines, key=lambda line: -line.shown[-1][1])):
        y, left = _TOP + 12 + number * _LINE_SPACING, _RIGHT + _MARGIN
        if line.is_joined:
            yield svg.line(left, y, left + _LINE_SAMPLE, y, series_colour(line.colour), width=2, dashes=_dashes(line))
        yield _mark(line, left + _LINE_SAMPLE / 2, y)
        yield svg.text(_RIGHT + _BEFORE_LABEL, y + svg.BASELINE * svg.TEXT_SIZE, line.label)


def _mark(line: Line, x: float, y: float) -> Element:
    colour = series_colour(line.colour)
    return svg.circle(x, y, 3.5, "page" if line.is_dashed else colour, colour)


def _dashes(line: Line) -> str:
    return "6 4" if line.is_dashed else ""
