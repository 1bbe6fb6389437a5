"""Speeds of implementations on cases: a band a case, a row an implementation, a point with its interval on a log axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import isnan, log
from xml.etree.ElementTree import Element

from pytest_ecornn.reporting.pictures import svg
from pytest_ecornn.reporting.pictures.axes import LogAxis, enclosing_ticks, labels_with_room
from pytest_ecornn.reporting.pictures.column import LINE, MARGIN, MIDDLE, SIZE, WIDTH, PictureColumn
from pytest_ecornn.reporting.pictures.text_width import cut, width, wrap
from pytest_ecornn.results.formatting import one_line, significant
from pytest_ecornn.results.statistics import Ratio

# In pixels.
_ROW, _PADDING, _INDENT = 22, 6, 12
_MIN_NAME, _MAX_NAME, _SPEED, _TIME = 80, 186, 66, 72  # widths of columns
_BESIDE_AXIS, _BESIDE_CASE = 18, 6  # between the columns and the ends of the axis; between a case's name and its details
_POINT, _BAR, _ARROW = 4.5, 3.0, 5.0
_MAX_TICKS = 10
_MAX_REACH = 10.0  # by how much intervals widen the axis that the points need
_LARGEST = 1e9  # ratio that has a point


@dataclass(frozen=True)
class Mark:
    """An implementation on a case. speed: the baseline's time over its own. note: text in place of a point.

    verdict: faster, same, unclear, slower, baseline; or how the row ended. is_below: whether it belongs to the row above.
    """

    name: str
    verdict: str
    speed: Ratio | None = None
    time: str = ""
    note: str = ""
    is_bold: bool = False
    is_below: bool = False

    @property
    def point(self) -> Ratio | None:
        """The speed, if the axis has a place for it."""
        return self.speed if self.speed and 1 / _LARGEST <= self.speed.ratio <= _LARGEST else None


@dataclass(frozen=True)
class Band:
    """A case. details: what its name does not say. baseline: its name, "" where there is none."""

    case: str
    details: str
    baseline: str
    marks: Sequence[Mark]

    @property
    def has_failed(self) -> bool:
        return any(mark.verdict in ("failed", "unproven") for mark in self.marks)

    @property
    def difference(self) -> float:
        """The logarithm of the largest speed-up or slow-down that is certain."""
        certain = [mark.point.ratio for mark in self.marks if mark.point and mark.verdict in ("faster", "slower")]
        return max((abs(log(ratio)) for ratio in certain), default=0.0)


COLOURS = {
    "faster": "blue", "same": "weak", "unclear": "ochre", "slower": "red", "baseline": "ink",
    "failed": "red", "unproven": "ochre",
}  # fmt: skip


def add_bands(column: PictureColumn, bands: Sequence[Band], baseline: str) -> None:
    """Adds the bands below what the column has, with an axis above and below them, and a legend. baseline: its name."""
    names = max((_name_width(mark) for band in bands for mark in band.marks), default=0.0)
    start = MARGIN + _INDENT + min(max(names, _MIN_NAME), _MAX_NAME) + _BESIDE_AXIS
    axis, ticks = _axis(bands, start, WIDTH - MARGIN - _TIME - _SPEED - _BESIDE_AXIS)
    column.y += _PADDING
    column.write(f"times as fast as {baseline}; left of 1x is slower", fill="ink", max_lines=1)
    column.parts += [*_labels(axis, ticks, column.y), *_heads(column.y)]
    column.y += LINE + 2
    tops = list(accumulate((_height(band) for band in bands), initial=column.y))
    for number, band in enumerate(bands):
        fill = ("band", "page")[number % 2]
        column.parts.append(svg.rectangle(0, tops[number], WIDTH, _height(band), fill, role="band"))
    column.parts += _grid(axis, ticks, column.y, tops[-1])
    for number, band in enumerate(bands):
        column.parts += _band(band, axis, tops[number], ("band", "page")[number % 2])
    column.parts += _labels(axis, ticks, tops[-1])
    column.y = tops[-1] + LINE + _PADDING
    verdicts = {mark.verdict for band in bands for mark in band.marks if mark.point}
    column.legend([(verdict, partial(_point, verdict, "")) for verdict in COLOURS if verdict in verdicts])


def _name_width(mark: Mark) -> float:
    return width(one_line(mark.name), SIZE, mark.is_bold) + _INDENT * mark.is_below


def _axis(bands: Sequence[Band], start: float, end: float) -> tuple[LogAxis, list[float]]:
    """Around all points, and around their intervals as far as these do not dwarf them."""
    speeds = [mark.point for band in bands for mark in band.marks if mark.point]
    low, high = min([1.0, *(speed.ratio for speed in speeds)]), max([1.0, *(speed.ratio for speed in speeds)])
    least, most = min([low, *(speed.low for speed in speeds)]), max([high, *(speed.high for speed in speeds)])
    ticks = enclosing_ticks(min(0.5, max(least, low / _MAX_REACH)), max(2.0, min(most, high * _MAX_REACH)), _MAX_TICKS)
    return LogAxis(ticks[0], ticks[-1], start, end), ticks


def _labels(axis: LogAxis, ticks: Sequence[float], y: float) -> Iterator[Element]:
    """Labels of the ticks that have room for one: of 1 first, then of powers of ten."""
    by_rank = sorted(ticks, key=lambda tick: (tick != 1, not f"{tick:e}".startswith("1.0")))
    for x, label in labels_with_room([(axis(tick), f"{tick:g}x") for tick in by_rank], SIZE):
        yield svg.text(x, y + SIZE, label, anchor="middle", size=SIZE, is_bold=label == "1x")


def _heads(y: float) -> Iterator[Element]:
    for x, label in ((WIDTH - MARGIN - _TIME, "speed"), (WIDTH - MARGIN, "time")):
        yield svg.text(x, y + SIZE, label, anchor="end", size=SIZE, fill="weak")


def _grid(axis: LogAxis, ticks: Sequence[float], top: float, bottom: float) -> Iterator[Element]:
    for tick in ticks:
        yield svg.line(axis(tick), top, axis(tick), bottom, "ink" if tick == 1 else "grid", width=1.5 if tick == 1 else 1)


def _heading(band: Band) -> list[str]:
    return wrap(one_line(band.case), WIDTH - 2 * MARGIN, SIZE, is_bold=True)


def _height(band: Band) -> float:
    return 2 * _PADDING + LINE * len(_heading(band)) + _ROW * len(band.marks)


def _band(band: Band, axis: LogAxis, top: float, fill: str) -> Iterator[Element]:
    """The case's name, then its rows."""
    y = top + _PADDING
    for line in _heading(band):
        yield from _over_grid(MARGIN, y + SIZE, line, fill, is_bold=True)
        end = MARGIN + width(line, SIZE, is_bold=True) + _BESIDE_CASE
        y += LINE
    details = one_line(band.details)
    if end + width(details, SIZE) <= WIDTH - MARGIN:
        yield from _over_grid(end, y - LINE + SIZE, details, fill, ink="weak")
    for mark in band.marks:
        yield from _row(mark, axis, y + _ROW / 2, fill)
        y += _ROW


def _row(mark: Mark, axis: LogAxis, y: float, fill: str) -> Iterator[Element]:
    left = MARGIN + _INDENT * (2 if mark.is_below else 1)
    name = cut(one_line(mark.name), axis.start - _BESIDE_AXIS - left, SIZE, mark.is_bold)
    yield svg.text(left, y + MIDDLE, name, size=SIZE, is_bold=mark.is_bold)
    yield svg.text(WIDTH - MARGIN, y + MIDDLE, mark.time, anchor="end", size=SIZE)
    if mark.point is None:
        start, end = axis.start - _BESIDE_AXIS / 2, WIDTH - MARGIN - (_TIME if mark.time else 0)
        note = cut(one_line(mark.note or mark.verdict), end - start, SIZE)
        yield from _over_grid(start, y + MIDDLE, note, fill, ink=COLOURS.get(mark.verdict, "weak"))
        return
    yield from _interval(mark.verdict, mark.point, axis, y)
    yield from _point(mark.verdict, "point", axis(mark.point.ratio), y)
    speed = "baseline" if mark.verdict == "baseline" else f"{significant(mark.point.ratio)}x"
    yield svg.text(WIDTH - MARGIN - _TIME, y + MIDDLE, cut(speed, _SPEED, SIZE), anchor="end", size=SIZE)


def _over_grid(x: float, y: float, text: str, fill: str, *, is_bold: bool = False, ink: str = "ink") -> Iterator[Element]:
    """A text with the band's background behind it, where lines of the grid would run through it."""
    if text:
        yield svg.rectangle(x - 2, y - SIZE + 1, width(text, SIZE, is_bold) + 4, LINE - 1, fill)
        yield svg.text(x, y, text, size=SIZE, is_bold=is_bold, fill=ink)


def _interval(verdict: str, speed: Ratio, axis: LogAxis, y: float) -> Iterator[Element]:
    """A bar, with an arrow where it goes on beyond the axis."""
    if isnan(speed.low) or isnan(speed.high) or speed.low >= speed.high:
        return
    colour, low, high = COLOURS.get(verdict, "weak"), axis(axis.clamp(speed.low)), axis(axis.clamp(speed.high))
    yield svg.line(low, y, high, y, colour, width=_BAR, role="interval")
    length = 2 * _ARROW
    for x, is_beyond, way in ((low, speed.low < axis.low, -1), (high, speed.high > axis.high, 1)):
        if is_beyond:
            head = f"M{x + way * length:.1f} {y:g}l{-way * length:g} -{_ARROW:g}v{length:g}z"
            yield svg.path(head, fill=colour, role="beyond")


def _point(verdict: str, role: str, x: float, y: float) -> Iterator[Element]:
    """A disc, a ring where the verdict is unclear, a diamond for the baseline."""
    colour = COLOURS.get(verdict, "weak")
    if verdict == "baseline":
        yield svg.diamond(x, y, _POINT, colour, role=role)
    else:
        yield svg.circle(x, y, _POINT, "page" if verdict == "unclear" else colour, colour, role=role)
