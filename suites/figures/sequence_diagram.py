"""Who waits for whom, as an SVG sequence diagram: lifelines of roles, boxes of work and waiting, arrows named by barriers.

Rows follow each other in time. Nothing overlaps: a row that would draw two things over each other raises, and so does a text
that is wider than its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import groupby, pairwise
from xml.etree.ElementTree import Element

from pytest_ecornn.reporting.pictures import svg
from pytest_ecornn.reporting.pictures.text_width import width as text_width

# All in pixels.
_MARGIN, _TITLE_BASELINE, _HEADS_TOP, _BLOCK_HEIGHT, _HEAD_HEIGHT = 16, 26, 42, 22, 36
_TEXT_SIZE, _LINE, _ARROW_ROW, _GAP, _LEGEND_ROW = 12, 15, 26, 8, 24
_HEAD_GAP, _BOX_GAP = 10, 22  # between neighbouring lifelines
_BLOCK_FILL = ("block-1", "block-2", "block-3", "block-4")


class Signal(Enum):
    """Meaning of an arrow: its colour, its dashes, and its line in the legend."""

    FULL = ("green", "", "full: data of the same block may be read")
    EMPTY = ("ochre", "6 4", "empty: a buffer may be written again")
    DATA = ("blue", "", "data, with the signal that they are valid")
    FLAG = ("purple", "2 3", "flag or event: what lies in memory may be read")
    PACE = ("weak", "8 3", "guards nothing, and saves time")


class Kind(Enum):
    """Work of a role in a box: its fill, and its line in the legend."""

    WORK = ("page", "works")
    WAIT = ("wait", "waits")
    STORAGE = ("storage", "memory")


@dataclass(frozen=True)
class Lifeline:
    """A role. block: the heading that it shares with its neighbours, a thread block or what stands for one."""

    name: str
    block: str
    detail: str = ""


@dataclass(frozen=True)
class Box:
    """A step of a role. lines: its text."""

    role: int
    lines: tuple[str, ...]
    kind: Kind


@dataclass(frozen=True)
class Arrow:
    """A signal from one role to another."""

    source: int
    target: int
    label: str
    signal: Signal


Row = Sequence[Box | Arrow]


def _boxes(kind: Kind, roles: int | tuple[int, ...], *lines: str) -> list[Box]:
    return [Box(role, lines, kind) for role in ((roles,) if isinstance(roles, int) else roles)]


work, wait, storage = partial(_boxes, Kind.WORK), partial(_boxes, Kind.WAIT), partial(_boxes, Kind.STORAGE)


@dataclass(frozen=True)
class Diagram:
    """spacing: pixels from a lifeline to the next."""

    title: str
    lifelines: Sequence[Lifeline]
    rows: Sequence[Row]
    spacing: int = 220

    @property
    def width(self) -> int:
        return 2 * _MARGIN + self.spacing * len(self.lifelines)

    @property
    def _rows_top(self) -> int:
        return _HEADS_TOP + _BLOCK_HEIGHT + _HEAD_HEIGHT + _GAP

    @property
    def _row_tops(self) -> list[int]:
        tops = [self._rows_top]
        for row in self.rows:
            tops.append(tops[-1] + _height(row))
        return tops

    @property
    def height(self) -> int:
        return self._row_tops[-1] + 2 * _GAP + _LEGEND_ROW * len(self._legend)

    def _x(self, role: int) -> float:
        return _MARGIN + self.spacing * (role + 0.5)

    @property
    def _legend(self) -> list[list[Signal | Kind]]:
        """The signals and kinds that the picture has, in lines of the legend."""
        items = [item for row in self.rows for item in row]
        signals = [signal for signal in Signal if any(isinstance(one, Arrow) and one.signal is signal for one in items)]
        kinds = [kind for kind in Kind if any(isinstance(one, Box) and one.kind is kind for one in items)]
        lines: list[list[Signal | Kind]] = [[*signals[start : start + 2]] for start in range(0, len(signals), 2)]
        return [*lines, [*kinds]]

    def render(self) -> str:
        """The SVG. Raises ValueError where something overlaps or does not fit."""
        for row in self.rows:
            self._check(row)
        parts = [*self._heads(), *self._all_rows(), *self._legend_lines()]
        return svg.Picture(self.title, self.width, self.height, parts).document()

    def _check(self, row: Row) -> None:
        spans = sorted(self._span(item) for item in row)
        if any(left[1] > right[0] for left, right in pairwise(spans)):
            raise ValueError(f"things overlap in the row {row}")

    def _span(self, item: Box | Arrow) -> tuple[float, float]:
        """Left and right end of an item."""
        if isinstance(item, Box):
            half = self.spacing / 2 - _BOX_GAP / 2
            _check_text(item.lines, self.spacing - _BOX_GAP - 6)
            return self._x(item.role) - half, self._x(item.role) + half
        ends = sorted((self._x(item.source), self._x(item.target)))
        _check_text([item.label], ends[1] - ends[0] - 24)
        return ends[0], ends[1]

    def _heads(self) -> Iterator[Element]:
        yield svg.text(_MARGIN + _HEAD_GAP / 2, _TITLE_BASELINE, self.title, size=svg.TITLE_SIZE, is_bold=True)
        blocks = groupby(range(len(self.lifelines)), lambda role: self.lifelines[role].block)
        bottom = self._row_tops[-1] + 2
        for number, (block, roles) in enumerate(blocks):
            own = list(roles)
            left = self._x(own[0]) - self.spacing / 2 + _HEAD_GAP / 2
            width = self.spacing * len(own) - _HEAD_GAP
            fill = _BLOCK_FILL[number % len(_BLOCK_FILL)]
            _check_text([block], width, is_bold=True)
            yield svg.rectangle(left, _HEADS_TOP, width, bottom - _HEADS_TOP, fill, radius=6)
            yield _middle(left + width / 2, _HEADS_TOP + 16, block, is_bold=True)
        for role, lifeline in enumerate(self.lifelines):
            x, top = self._x(role), _HEADS_TOP + _BLOCK_HEIGHT
            _check_text([lifeline.name], self.spacing - _BOX_GAP, is_bold=True)
            _check_text([lifeline.detail], self.spacing - _BOX_GAP)
            yield _middle(x, top + 13, lifeline.name, is_bold=True)
            yield _middle(x, top + 28, lifeline.detail)
            yield svg.line(x, top + _HEAD_HEIGHT, x, bottom - 6, "weak", dashes="3 3")

    def _all_rows(self) -> Iterator[Element]:
        for row, top in zip(self.rows, self._row_tops, strict=False):
            for item in row:
                yield from self._box(item, top, _height(row)) if isinstance(item, Box) else self._arrow(item, top)

    def _box(self, box: Box, top: int, height: int) -> Iterator[Element]:
        left, right = self._span(box)
        tall = _LINE * len(box.lines) + 8
        first = top + (height - tall) / 2
        yield _frame(left, first, right - left, tall, box.kind)
        for i, line in enumerate(box.lines):
            yield _middle(self._x(box.role), first + 4 + _LINE * i + 12, line)

    def _arrow(self, arrow: Arrow, top: int) -> Iterator[Element]:
        start, end, y = self._x(arrow.source), self._x(arrow.target), top + _ARROW_ROW - 7
        yield from _line(start, end, y, arrow.signal)
        middle, wide = (start + end) / 2, _width(arrow.label)
        yield svg.rectangle(middle - wide / 2 - 2, y - 16, wide + 4, 13, "page", radius=2)
        yield _middle(middle, y - 5, arrow.label, fill=arrow.signal.value[0])

    def _legend_lines(self) -> Iterator[Element]:
        top = self._row_tops[-1] + _GAP
        for number, entries in enumerate(self._legend):
            y, x = top + _LEGEND_ROW * number + 14, float(_MARGIN + _HEAD_GAP)
            for entry in entries:
                if isinstance(entry, Signal):
                    yield from _line(x, x + 44, y, entry)
                else:
                    yield _frame(x, y - 8, 44, 16, entry)
                yield svg.text(x + 52, y + 4, entry.value[-1], size=_TEXT_SIZE)
                x += 52 + _width(entry.value[-1]) + 28
            if x - 28 > self.width:
                raise ValueError(f"the legend is wider than the picture of {self.width}")


def _height(row: Row) -> int:
    return max(_LINE * len(item.lines) + 8 + _GAP if isinstance(item, Box) else _ARROW_ROW for item in row)


def _width(text: str, is_bold: bool = False) -> float:
    return text_width(text, _TEXT_SIZE, is_bold)


def _check_text(lines: Sequence[str], room: float, is_bold: bool = False) -> None:
    for line in lines:
        if _width(line, is_bold) > room:
            raise ValueError(f"{line!r} needs {_width(line, is_bold):.0f} pixels and has {room:.0f}")


def _middle(x: float, y: float, text: str, *, is_bold: bool = False, fill: str = "") -> Element:
    return svg.text(x, y, text, anchor="middle", size=_TEXT_SIZE, is_bold=is_bold, fill=fill)


def _frame(x: float, y: float, width: float, height: float, kind: Kind) -> Element:
    dashes = "4 3" if kind is Kind.WAIT else ""
    return svg.rectangle(x, y, width, height, kind.value[0], stroke="weak", radius=3, dashes=dashes)


def _line(start: float, end: float, y: float, signal: Signal) -> Iterator[Element]:
    """An arrow from start to end."""
    colour, dashes, _ = signal.value
    back = 9 if end > start else -9
    yield svg.line(start, y, end - back / 2, y, colour, width=1.6, dashes=dashes)
    yield svg.path(f"M{end:g} {y:g}L{end - back:g} {y - 4.5:g}L{end - back:g} {y + 4.5:g}Z", fill=colour)
