"""How many rows of each implementation ended how: a bar of parts a row, for runs that time nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_ecornn.reporting.pictures import svg
from pytest_ecornn.reporting.pictures.column import LINE, MARGIN, MIDDLE, SIZE, WIDTH, PictureColumn
from pytest_ecornn.reporting.pictures.text_width import cut, width
from pytest_ecornn.results.formatting import one_line

COLOURS = {"passed": "blue", "failed": "red", "unproven": "ochre", "refused": "weak"}
# In pixels.
_ROW, _BAR, _BETWEEN = 24, 12, 14
_MAX_NAME, _COUNT = 186, 70  # widths of columns


def add_counts(column: PictureColumn, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Adds a row for each implementation: its counts by the words of COLOURS, as a bar and as numbers."""
    words = [word for word in COLOURS if any(of_one.get(word) for of_one in counts.values())]
    names = {name: cut(one_line(name), _MAX_NAME, SIZE) for name in counts}
    left = MARGIN + max((width(name, SIZE) for name in names.values()), default=0.0) + _BETWEEN
    most = max((sum(of_one.values()) for of_one in counts.values()), default=0)
    scale = (WIDTH - MARGIN - _COUNT * len(words) - left) / max(most, 1)
    ends = [WIDTH - MARGIN - _COUNT * number for number in reversed(range(len(words)))]
    for end, word in zip(ends, words, strict=True):
        column.parts.append(svg.text(end, column.y + SIZE, word, anchor="end", size=SIZE, fill=COLOURS[word], is_bold=True))
    column.y += LINE if words else 0
    for number, (name, of_one) in enumerate(counts.items()):
        column.parts.append(svg.rectangle(0, column.y, WIDTH, _ROW, ("band", "page")[number % 2], role="band"))
        column.parts.append(svg.text(MARGIN, column.y + _ROW / 2 + MIDDLE, names[name], size=SIZE))
        _add_bar(column, [(word, of_one.get(word, 0)) for word in words], left, scale)
        for end, word in zip(ends, words, strict=True):
            count = svg.text(end, column.y + _ROW / 2 + MIDDLE, of_one.get(word, 0), anchor="end", size=SIZE)
            column.parts.append(count)
        column.y += _ROW


def _add_bar(column: PictureColumn, parts: Sequence[tuple[str, int]], left: float, scale: float) -> None:
    for word, count in parts:
        if count:
            top = column.y + (_ROW - _BAR) / 2
            column.parts.append(svg.rectangle(left, top, count * scale, _BAR, COLOURS[word], role="bar"))
            left += count * scale
