"""Ratios as horizontal bars from 0, in groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from xml.etree.ElementTree import Element

from pytest_ecornn.reporting.pictures import svg
from pytest_ecornn.reporting.pictures.page import MARGIN, page
from pytest_ecornn.results.formatting import ratio_interval
from pytest_ecornn.results.statistics import Ratio

# In pixels: where bars begin and end, where their figures end, and from the top the first bar, and what rows take.
_LEFT, _RIGHT, _FIGURE = 390, 800, 980
_FIRST, _ROW, _BETWEEN, _BAR = 70, 20, 12, 13
_COLOURS = ("weak", "ochre", "purple", "teal", "green", "blue")
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


def render_bars(title: str, groups: Sequence[BarGroup], footnotes: Sequence[str]) -> svg.Picture:
    """The whole picture. Raises ValueError where no bar has a ratio."""
    ratios = [bar.ratio for group in groups for bar in group.items if bar.ratio]
    if not ratios:
        raise ValueError(f"expected a ratio at least in {title!r}, got none")
    end = max(1.0, *(ratio.high for ratio in ratios))
    labels = list(dict.fromkeys(bar.label for group in groups for bar in group.items))
    bottom = _FIRST + sum(_ROW * len(group.items) + _BETWEEN for group in groups)
    return page(title, [*_grid(end, bottom), *_groups(groups, end, labels)], footnotes, bottom + 49)


def _x(ratio: float, end: float) -> float:
    return _LEFT + ratio / end * (_RIGHT - _LEFT)


def _grid(end: float, bottom: int) -> Iterator[Element]:
    step = next((one for one in _STEPS if end / one <= _MAX_TICKS), end)
    for number in range(ceil(end / step) + 1):
        tick = number * step
        if tick > end:
            return
        x, is_one = _x(tick, end), tick == 1
        yield svg.line(x, _FIRST - 12, x, bottom, "ink" if is_one else "grid", width=1.5 if is_one else 1)
        yield svg.text(x, bottom + 16, f"{tick:g}x", anchor="middle", is_bold=is_one)


def _groups(groups: Sequence[BarGroup], end: float, labels: Sequence[str]) -> Iterator[Element]:
    y = _FIRST
    for group in groups:
        yield svg.text(MARGIN, y + 10, group.title, is_bold=True)
        for bar in group.items:
            yield from _bar(bar, y, end, _COLOURS[labels.index(bar.label) % len(_COLOURS)])
            y += _ROW
        y += _BETWEEN


def _bar(bar: ChartBar, y: int, end: float, colour: str) -> Iterator[Element]:
    yield svg.text(_LEFT - 8, y + 10, bar.label, anchor="end")
    if bar.ratio is None:
        yield svg.text(_LEFT + 6, y + 10, bar.text, fill="weak")
        return
    middle, low, high = bar.ratio.ratio, bar.ratio.low, bar.ratio.high
    yield svg.rectangle(_LEFT, y - 1, _x(middle, end) - _LEFT, _BAR, colour, role="bar")
    if high > low:
        halfway = y + _BAR // 2 - 1
        for stroke, width in (("page", 5.0), ("ink", 2.0)):  # ink is told apart from the bar by an edge
            yield svg.line(_x(low, end), halfway, _x(high, end), halfway, stroke, width=width)
    figure = bar.text or (ratio_interval(middle, low, high) if high > low else f"{middle:.3g}")
    yield svg.text(_FIGURE, y + 10, figure, anchor="end")
