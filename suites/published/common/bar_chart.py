"""Ratios as horizontal bars from 0 in groups, an SVG that fetches nothing: no fonts, scripts or links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from pytest_ecornn.reporting.picture import COLOURS
from pytest_ecornn.reporting.ratio_chart import FOOTNOTE, MARGIN, svg_document, svg_text
from pytest_ecornn.results.formatting import ratio_interval
from pytest_ecornn.results.statistics import Ratio

# In pixels: where bars begin and end, where their figures end, and from the top the first bar, and what rows take.
_LEFT, _RIGHT, _FIGURE = 390, 800, 980
_FIRST, _ROW, _BETWEEN, _BAR = 70, 20, 12, 13
_INK, _GREY, _GRID = COLOURS[0], COLOURS[7], "#d8dce0"
_PALETTE = (COLOURS[7], COLOURS[3], COLOURS[5], COLOURS[6], COLOURS[2], COLOURS[4])
_STEPS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_MAX_TICKS = 8


@dataclass(frozen=True)
class ChartBar:
    """One ratio, with its interval where it has one. text: in place of a bar, or beside it."""

    label: str
    ratio: Ratio | None
    text: str = ""


@dataclass(frozen=True)
class BarGroup:
    """Bars under one title; those of one label have one colour in all groups."""

    title: str
    items: Sequence[ChartBar]


def render_bars(title: str, groups: Sequence[BarGroup], footnotes: Sequence[str]) -> str:
    """The whole document. Raises ValueError where no bar has a ratio."""
    ratios = [bar.ratio for group in groups for bar in group.items if bar.ratio]
    if not ratios:
        raise ValueError(f"expected a ratio at least in {title!r}, got none")
    end = max(1.0, *(ratio.high for ratio in ratios))
    labels = list(dict.fromkeys(bar.label for group in groups for bar in group.items))
    bottom = _FIRST + sum(_ROW * len(group.items) + _BETWEEN for group in groups)
    height = bottom + 30 + FOOTNOTE * len(footnotes) + 10
    return svg_document(title, height, [*_grid(end, bottom), *_groups(groups, end, labels)], footnotes, bottom + 30)


def _x(ratio: float, end: float) -> float:
    return _LEFT + ratio / end * (_RIGHT - _LEFT)


def _grid(end: float, bottom: int) -> Iterator[str]:
    step = next((one for one in _STEPS if end / one <= _MAX_TICKS), end)
    for number in range(ceil(end / step) + 1):
        tick = number * step
        if tick > end:
            return
        stroke = f'stroke="rgb{_INK}" stroke-width="1.5"' if tick == 1 else f'stroke="{_GRID}"'
        yield f'<line x1="{_x(tick, end):.1f}" y1="{_FIRST - 12}" x2="{_x(tick, end):.1f}" y2="{bottom}" {stroke}/>'
        yield svg_text(_x(tick, end), bottom + 16, f"{tick:g}x", anchor="middle")


def _groups(groups: Sequence[BarGroup], end: float, labels: Sequence[str]) -> Iterator[str]:
    y = _FIRST
    for group in groups:
        yield svg_text(MARGIN, y + 10, group.title, weight="bold")
        for bar in group.items:
            yield from _bar(bar, y, end, _PALETTE[labels.index(bar.label) % len(_PALETTE)])
            y += _ROW
        y += _BETWEEN


def _bar(bar: ChartBar, y: int, end: float, colour: tuple[int, int, int]) -> Iterator[str]:
    yield svg_text(_LEFT - 8, y + 10, bar.label, anchor="end")
    if bar.ratio is None:
        yield svg_text(_LEFT + 6, y + 10, bar.text, fill=_GREY)
        return
    middle, low, high = bar.ratio.ratio, bar.ratio.low, bar.ratio.high
    yield f'<rect x="{_LEFT}" y="{y - 1}" width="{_x(middle, end) - _LEFT:.1f}" height="{_BAR}" fill="rgb{colour}"/>'
    if high > low:
        line = f'y1="{y + _BAR // 2 - 1}" y2="{y + _BAR // 2 - 1}" stroke="rgb{_INK}" stroke-width="2"'
        yield f'<line x1="{_x(low, end):.1f}" x2="{_x(high, end):.1f}" {line}/>'
    figure = bar.text or (ratio_interval(middle, low, high) if high > low else f"{middle:.3g}")
    yield svg_text(_FIGURE, y + 10, figure, anchor="end")
