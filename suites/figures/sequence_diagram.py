"""Who waits for whom, as an SVG sequence diagram: lifelines of roles, boxes of work and waiting, arrows named by barriers.

Rows follow each other in time. Nothing overlaps: a row that would draw two things over each other raises, and so does a text
that is wider than its place. The picture fetches nothing: no fonts, scripts or links. Its white background keeps it legible on
dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from html import escape
from itertools import groupby, pairwise

_FONTS = "-apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
# All in pixels.
_MARGIN, _TITLE_BASELINE, _HEADS_TOP, _BLOCK_HEIGHT, _HEAD_HEIGHT = 16, 26, 42, 22, 36
_TEXT_SIZE, _TITLE_SIZE, _LINE, _ARROW_ROW, _GAP, _LEGEND_ROW = 12, 15, 15, 26, 8, 24
_LETTER = 0.56  # width of a letter over its size: more than that of most texts in most fonts
_HEAD_GAP, _BOX_GAP = 10, 22  # between neighbouring lifelines
_INK, _LINE_COLOUR, _BLOCK_FILL = "#1f2328", "#9aa4af", ("#e3ebf6", "#ece6f4", "#e6f0e8", "#f4ecdf")


class Signal(Enum):
    """What an arrow says: its colour, its dashes, and its meaning in the legend."""

    FULL = ("#147832", "", "full: data of the same block may be read")
    EMPTY = ("#96640a", "6 4", "empty: a buffer may be written again")
    DATA = ("#1450b4", "", "data, with the signal that they are valid")
    FLAG = ("#823ca0", "2 3", "flag or event: what lies in memory may be read")
    PACE = ("#57606a", "8 3", "guards nothing, and saves time")


class Kind(Enum):
    """What a role does in a box: its fill, and its meaning in the legend."""

    WORK = ("#ffffff", "works")
    WAIT = ("#fdf3d3", "waits")
    STORAGE = ("#e9edf1", "memory")


@dataclass(frozen=True)
class Lifeline:
    """A role. block: the heading that it shares with its neighbours, a thread block or what stands for one."""

    name: str
    block: str
    detail: str = ""


@dataclass(frozen=True)
class Box:
    """What a role does. lines: the text."""

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


def work(roles: int | tuple[int, ...], *lines: str) -> list[Box]:
    return _boxes(roles, lines, Kind.WORK)


def wait(roles: int | tuple[int, ...], *lines: str) -> list[Box]:
    return _boxes(roles, lines, Kind.WAIT)


def storage(roles: int | tuple[int, ...], *lines: str) -> list[Box]:
    return _boxes(roles, lines, Kind.STORAGE)


def _boxes(roles: int | tuple[int, ...], lines: tuple[str, ...], kind: Kind) -> list[Box]:
    return [Box(role, lines, kind) for role in ((roles,) if isinstance(roles, int) else roles)]


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
        """What the picture has, in lines of the legend."""
        items = [item for row in self.rows for item in row]
        signals = [signal for signal in Signal if any(isinstance(one, Arrow) and one.signal is signal for one in items)]
        kinds = [kind for kind in Kind if any(isinstance(one, Box) and one.kind is kind for one in items)]
        lines: list[list[Signal | Kind]] = [[*signals[start : start + 2]] for start in range(0, len(signals), 2)]
        return [*lines, [*kinds]]

    def render(self) -> str:
        """The SVG. Raises ValueError where something overlaps or does not fit."""
        for row in self.rows:
            self._check(row)
        body = "\n".join([*self._heads(), *self._all_rows(), *self._legend_lines()])
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" xmlns="http://www.w3.org/2000/svg" font-family="{_FONTS}" '
            f'font-size="{_TEXT_SIZE}" fill="{_INK}">\n<title>{escape(self.title)}</title>\n'
            f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
        )

    def _check(self, row: Row) -> None:
        spans = sorted(self._span(item) for item in row)
        if any(left[1] > right[0] for left, right in pairwise(spans)):
            raise ValueError(f"things overlap in the row {row}")

    def _span(self, item: Box | Arrow) -> tuple[float, float]:
        """Where an item begins and ends, left to right."""
        if isinstance(item, Box):
            half = self.spacing / 2 - _BOX_GAP / 2
            _check_text(item.lines, self.spacing - _BOX_GAP - 6)
            return self._x(item.role) - half, self._x(item.role) + half
        ends = sorted((self._x(item.source), self._x(item.target)))
        _check_text([item.label], ends[1] - ends[0] - 24)
        return ends[0], ends[1]

    def _heads(self) -> Iterator[str]:
        yield _text(self.title, _MARGIN + _HEAD_GAP / 2, _TITLE_BASELINE, f'font-size="{_TITLE_SIZE}" font-weight="600"')
        blocks = groupby(range(len(self.lifelines)), lambda role: self.lifelines[role].block)
        bottom = self._row_tops[-1] + 2
        for number, (block, roles) in enumerate(blocks):
            own = list(roles)
            left = self._x(own[0]) - self.spacing / 2 + _HEAD_GAP / 2
            width = self.spacing * len(own) - _HEAD_GAP
            fill = _BLOCK_FILL[number % len(_BLOCK_FILL)]
            _check_text([block], width)
            yield f'<rect x="{left:g}" y="{_HEADS_TOP}" width="{width:g}" height="{bottom - _HEADS_TOP}" rx="6" fill="{fill}"/>'
            yield _text(block, left + width / 2, _HEADS_TOP + 16, 'text-anchor="middle" font-weight="600"')
        for role, lifeline in enumerate(self.lifelines):
            x, top = self._x(role), _HEADS_TOP + _BLOCK_HEIGHT
            _check_text([lifeline.name, lifeline.detail], self.spacing - _BOX_GAP)
            yield _text(lifeline.name, x, top + 13, 'text-anchor="middle" font-weight="600"')
            yield _text(lifeline.detail, x, top + 28, f'text-anchor="middle" font-size="{_TEXT_SIZE - 1}"')
            yield (
                f'<line x1="{x:g}" y1="{top + _HEAD_HEIGHT}" x2="{x:g}" y2="{bottom - 6}" stroke="{_LINE_COLOUR}" '
                'stroke-dasharray="3 3"/>'
            )

    def _all_rows(self) -> Iterator[str]:
        for row, top in zip(self.rows, self._row_tops, strict=False):
            for item in row:
                yield from self._box(item, top, _height(row)) if isinstance(item, Box) else self._arrow(item, top)

    def _box(self, box: Box, top: int, height: int) -> Iterator[str]:
        left, right = self._span(box)
        tall = _LINE * len(box.lines) + 8
        first = top + (height - tall) / 2
        dashes = ' stroke-dasharray="4 3"' if box.kind is Kind.WAIT else ""
        yield (
            f'<rect x="{left:g}" y="{first:g}" width="{right - left:g}" height="{tall}" rx="3" fill="{box.kind.value[0]}" '
            f'stroke="#57606a"{dashes}/>'
        )
        for i, line in enumerate(box.lines):
            yield _text(line, self._x(box.role), first + 4 + _LINE * i + 12, 'text-anchor="middle"')

    def _arrow(self, arrow: Arrow, top: int) -> Iterator[str]:
        start, end, y = self._x(arrow.source), self._x(arrow.target), top + _ARROW_ROW - 7
        yield from _line(start, end, y, arrow.signal)
        middle, wide = (start + end) / 2, _width(arrow.label)
        fill = f'text-anchor="middle" fill="{arrow.signal.value[0]}"'
        yield (
            f'<rect x="{middle - wide / 2 - 2:g}" y="{y - 16}" width="{wide + 4:g}" height="13" rx="2" fill="white" '
            'fill-opacity="0.85"/>'
        )
        yield _text(arrow.label, middle, y - 5, fill)

    def _legend_lines(self) -> Iterator[str]:
        top = self._row_tops[-1] + _GAP
        for number, entries in enumerate(self._legend):
            y, x = top + _LEGEND_ROW * number + 14, float(_MARGIN + _HEAD_GAP)
            for entry in entries:
                if isinstance(entry, Signal):
                    yield from _line(x, x + 44, y, entry)
                else:
                    dashes = ' stroke-dasharray="4 3"' if entry is Kind.WAIT else ""
                    yield (
                        f'<rect x="{x:g}" y="{y - 8}" width="44" height="16" rx="3" fill="{entry.value[0]}" '
                        f'stroke="#57606a"{dashes}/>'
                    )
                yield _text(entry.value[-1], x + 52, y + 4)
                x += 52 + _width(entry.value[-1]) + 28
            if x - 28 > self.width:
                raise ValueError(f"the legend is wider than the picture of {self.width}")


def _height(row: Row) -> int:
    return max(_LINE * len(item.lines) + 8 + _GAP if isinstance(item, Box) else _ARROW_ROW for item in row)


def _width(text: str) -> float:
    return len(text) * _TEXT_SIZE * _LETTER


def _check_text(lines: Sequence[str], room: float) -> None:
    for line in lines:
        if _width(line) > room:
            raise ValueError(f"{line!r} needs {_width(line):.0f} pixels and has {room:.0f}")


def _text(text: str, x: float, y: float, attributes: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{" " * bool(attributes)}{attributes}>{escape(text)}</text>'


def _line(start: float, end: float, y: float, signal: Signal) -> Iterator[str]:
    """An arrow from start to end."""
    colour, dashes, _ = signal.value
    back = 9 if end > start else -9
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    yield f'<line x1="{start:g}" y1="{y:g}" x2="{end - back / 2:g}" y2="{y:g}" stroke="{colour}" stroke-width="1.6"{dashed}/>'
    yield f'<path d="M{end:g} {y:g}L{end - back:g} {y - 4.5:g}L{end - back:g} {y + 4.5:g}Z" fill="{colour}"/>'
