"""Lines over two logarithmic axes as an SVG that, as summary.svg, needs nothing from anywhere: no fonts, scripts or links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, floor, isfinite, log10

from pytest_ecornn.reporting.picture import COLOURS, FONTS
from pytest_ecornn.results.formatting import one_line

# In pixels: the picture, and where its axes are.
_HEIGHT = 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 600, 44, 424
_TITLE, _LETTER, _BETWEEN_LINES = 15, 12, 19
_LETTER_WIDTH = 0.61  # of its height
_BEFORE_LABEL = 54  # from the axes to the legend's texts
_GREY = "#d8dce0"
_MIN_TICKS = 3  # of powers of ten; between fewer, twos and fives are ticks too


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
        return [(x, y) for x, y in self.points if _has_place(x, y)]

    @property
    def bars(self) -> list[tuple[float, float, float]]:
        """x, low and high of the points that are shown and have an interval with a place on the axis."""
        return [
            (x, low, high)
            for (x, y), (low, high) in zip(self.points, self.intervals, strict=False)
            if _has_place(x, y, low, high) and low <= high
        ]


def _has_place(*values: float) -> bool:
    """Whether a logarithmic axis has a place for all of them."""
    return all(value > 0 and isfinite(value) for value in values)


@dataclass(frozen=True)
class _Axis:
    """Maps values to pixels on a logarithmic axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return self.start + share * (self.end - self.start)


def log_plot(title: str, x_label: str, y_label: str, lines: Sequence[Line], x_ticks: Sequence[float] = ()) -> str:
    """The picture; every x that has a point is a tick unless they are given. Raises ValueError where no point can be shown."""
    lines = [line for line in lines if line.shown]
    if not lines:
        raise ValueError(f"expected lines with points above 0, got none for {title!r}")
    xs = sorted({x for line in lines for x, _ in line.shown})
    ys = [y for line in lines for _, y in line.shown] + [y for line in lines for bar in line.bars for y in bar[1:]]
    ticks = _ticks(min(ys), max(ys))
    x_axis = _Axis(xs[0] / 1.2, xs[-1] * 1.2, _LEFT, _RIGHT)
    y_axis = _Axis(ticks[0], ticks[-1], _BOTTOM, _TOP)
    widths = [_RIGHT + _BEFORE_LABEL + _width(line.label, _LETTER) for line in lines]
    width = ceil(max(_LEFT + _width(title, _TITLE), *widths))
    parts = [
        f'<svg viewBox="0 0 {width} {_HEIGHT}" width="{width}" height="{_HEIGHT}" xmlns="http://www.w3.org/2000/svg" '
        f'font-family="{escape(FONTS)}" font-size="{_LETTER}">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(_LEFT, 24, title, size=_TITLE),
        *_grid(x_axis, y_axis, x_ticks or xs, ticks),
        _text((_LEFT + _RIGHT) / 2, _HEIGHT - 14, x_label, anchor="middle"),
        f'<g transform="translate(18, {(_TOP + _BOTTOM) / 2:g}) rotate(-90)">{_text(0, 0, y_label, anchor="middle")}</g>',
        *(part for line in lines for part in _drawn(line, x_axis, y_axis)),
        *_legend(lines),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def powers_of_ten(low: float, high: float) -> list[float]:
    """Returns those from low to high."""
    return [10.0**power for power in range(ceil(log10(low)), floor(log10(high)) + 1)]


def _ticks(low: float, high: float) -> list[float]:
    """Around all values, at least two."""
    powers = range(floor(log10(low)), max(ceil(log10(high)), floor(log10(low)) + 1) + 1)
    ticks = [10.0**power for power in powers]
    if len(ticks) <= _MIN_TICKS:
        ticks = sorted({tick * factor for tick in ticks for factor in (1, 2, 5) if tick * factor <= ticks[-1]})
        ticks = [tick for tick, after in pairwise([*ticks, ticks[-1] * 2]) if after > low]
    return ticks


def _grid(x_axis: _Axis, y_axis: _Axis, xs: Sequence[float], ys: Sequence[float]) -> Iterator[str]:
    yield f'<rect x="{_LEFT}" y="{_TOP}" width="{_RIGHT - _LEFT}" height="{_BOTTOM - _TOP}" fill="none" stroke="{_GREY}"/>'
    for x in xs:
        position = x_axis(x)
        yield f'<line x1="{position:.1f}" y1="{_TOP}" x2="{position:.1f}" y2="{_BOTTOM}" stroke="{_GREY}"/>'
        yield _text(position, _BOTTOM + 20, _number(x), anchor="middle")
    for y in ys:
        position = y_axis(y)
        yield f'<line x1="{_LEFT}" y1="{position:.1f}" x2="{_RIGHT}" y2="{position:.1f}" stroke="{_GREY}"/>'
        yield _text(_LEFT - 8, position + 4, _number(y), anchor="end")


def _width(text: str, size: int) -> float:
    """Width of a text in pixels, with room for two letters after it."""
    return _LETTER_WIDTH * size * (2 + len(one_line(text)))


def _number(value: float) -> str:
    return f"{value:,g}" if 1e-2 <= value < 1e6 else f"{value:.0e}"


def _drawn(line: Line, x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    places = [(x_axis(x), y_axis(y)) for x, y in line.shown]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    if line.is_joined:
        yield f'<polyline points="{joined}" fill="none" stroke="{_colour(line)}" stroke-width="2"{_dashes(line)}/>'
    for x, low, high in line.bars:
        yield (
            f'<line x1="{x_axis(x):.1f}" y1="{y_axis(low):.1f}" x2="{x_axis(x):.1f}" y2="{y_axis(high):.1f}" '
            f'stroke="{_colour(line)}" stroke-width="1.5" class="interval"/>'
        )
    for x, y in places:
        yield _mark(line, x, y)


def _legend(lines: Sequence[Line]) -> Iterator[str]:
    """Legend to the right of the axes, from the line that ends highest to the one that ends lowest."""
    for number, line in enumerate(sorted(lines, key=lambda line: -line.shown[-1][1])):
        y = _TOP + 12 + number * _BETWEEN_LINES
        left = _RIGHT + 16
        if line.is_joined:
            ends = f'x1="{left}" y1="{y}" x2="{left + 30}" y2="{y}"'
            yield f'<line {ends} stroke="{_colour(line)}" stroke-width="2"{_dashes(line)}/>'
        yield _mark(line, left + 15, y)
        yield _text(_RIGHT + _BEFORE_LABEL, y + 4, line.label)


def _mark(line: Line, x: float, y: float) -> str:
    fill = "white" if line.is_dashed else _colour(line)
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{fill}" stroke="{_colour(line)}" stroke-width="1.5"/>'


def _dashes(line: Line) -> str:
    return ' stroke-dasharray="6 4"' if line.is_dashed else ""


def _colour(line: Line) -> str:
    return "rgb({}, {}, {})".format(*COLOURS[line.colour % len(COLOURS)])


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = _LETTER) -> str:
    style = f'text-anchor="{anchor}" font-size="{size}" fill="rgb{COLOURS[0]}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(one_line(text))}</text>'
