"""Ratios of many cases as a strip chart: a tick per case, the geometric mean and its interval per series."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from pytest_ecornn.reporting.pictures import svg
from pytest_ecornn.reporting.pictures.axes import LogAxis, enclosing_ticks
from pytest_ecornn.reporting.pictures.page import FOOTNOTE, MARGIN, WIDTH, page
from pytest_ecornn.reporting.pictures.text_width import width
from pytest_ecornn.results.formatting import ratio_interval, significant
from pytest_ecornn.results.statistics import Ratio

# All in pixels. The columns from left to right: labels, the chart, mean, range, number of cases, number of slower cases.
_CHART_LEFT, _CHART_RIGHT = 296, 610
_MEAN, _RANGE, _CASES, _SLOWER = 760, 868, 936, 984
_HEAD_BASELINE, _FIRST_ROW = 66, 78
_ROW, _HEADING = 23, 32
_TICK, _DIAMOND = 7, 6  # half heights
_BETWEEN_SAMPLES = 22  # of the legend


@dataclass(frozen=True)
class Series:
    """One set of cases. ratios: a baseline's time over ours for each measured case, over 1 where ours is faster.

    mean: of all ratios. planned: number of cases in the set, measured or not.
    """

    label: str
    ratios: Sequence[Ratio]
    mean: Ratio
    planned: int

    @property
    def cases(self) -> str:
        complete = len(self.ratios)
        return str(complete) if complete == self.planned else f"{complete} of {self.planned}"

    @property
    def slower(self) -> int:
        """Number of cases whose whole interval lies below 1."""
        return sum(ratio.high < 1 for ratio in self.ratios)


@dataclass(frozen=True)
class Group:
    """Series under one heading."""

    title: str
    series: Sequence[Series]


def render_chart(title: str, groups: Sequence[Group], footnotes: Sequence[str]) -> svg.Picture:
    """The whole picture. Raises ValueError where a series has no case."""
    if empty := [series.label for group in groups for series in group.series if not series.ratios]:
        raise ValueError(f"expected at least one case in each series, got none in {empty[0]!r}")
    bounds = [ratio.ratio for group in groups for series in group.series for ratio in series.ratios]
    bounds += [bound for group in groups for series in group.series for bound in (series.mean.low, series.mean.high)]
    ticks = enclosing_ticks(min(0.5, *bounds), max(2.0, *bounds))
    axis = LogAxis(ticks[0], ticks[-1], _CHART_LEFT, _CHART_RIGHT)
    bottom = _FIRST_ROW + sum(_HEADING + _ROW * len(group.series) for group in groups) + 6
    parts = [*_frame(axis, ticks, bottom), *_head(axis), *_rows(groups, axis), *_legend(bottom + 46)]
    return page(title, parts, footnotes, bottom + 46 + FOOTNOTE)


def _frame(axis: LogAxis, ticks: Sequence[float], bottom: float) -> Iterator[Element]:
    """The half where ours is slower, tinted, and grid lines with their labels."""
    top = _FIRST_ROW - 2
    yield svg.rectangle(_CHART_LEFT, top, axis(1) - _CHART_LEFT, bottom - top, "slower-half")
    for tick in ticks:
        yield svg.line(axis(tick), top, axis(tick), bottom, "ink" if tick == 1 else "grid", width=1.5 if tick == 1 else 1)
        yield svg.text(axis(tick), bottom + 17, f"{tick:g}x", anchor="middle", is_bold=tick == 1)


def _head(axis: LogAxis) -> Iterator[Element]:
    yield svg.text(axis(1) - 6, _HEAD_BASELINE, "slower", anchor="end", fill="red")
    yield svg.text(axis(1) + 6, _HEAD_BASELINE, "faster than the baseline", fill="blue")
    for x, label in ((_MEAN, "mean [bounds]"), (_RANGE, "range"), (_CASES, "cases"), (_SLOWER, "lost")):
        yield svg.text(x, _HEAD_BASELINE, label, anchor="end", fill="weak")


def _rows(groups: Sequence[Group], axis: LogAxis) -> Iterator[Element]:
    y = float(_FIRST_ROW)
    for group in groups:
        yield svg.rectangle(MARGIN - 8, y + 4, WIDTH - 2 * (MARGIN - 8), 23, "band", radius=3)
        yield svg.text(MARGIN, y + 20, group.title, is_bold=True)
        y += _HEADING
        for series in group.series:
            yield from _series(series, axis, y + _ROW / 2)
            y += _ROW


def _series(series: Series, axis: LogAxis, y: float) -> Iterator[Element]:
    """One line: label, a tick per case, the mean with its interval, and figures."""
    yield svg.text(MARGIN + 14, y + 4, series.label)
    verdicts: tuple[tuple[str, Callable[[Ratio], bool]], ...] = (
        ("blue", lambda ratio: ratio.low > 1),
        ("weak", lambda ratio: ratio.low <= 1 <= ratio.high),
        ("red", lambda ratio: ratio.high < 1),
    )
    for colour, is_so in verdicts:
        if xs := [axis(ratio.ratio) for ratio in series.ratios if is_so(ratio)]:
            ticks = svg.path("".join(f"M{x:.1f} {y - _TICK:g}v{2 * _TICK}" for x in sorted(xs)), stroke=colour, width=1.5)
            ticks.set("stroke-opacity", "0.6")
            yield ticks
    yield from _mean_mark(axis(series.mean.low), axis(series.mean.ratio), axis(series.mean.high), y)
    least, most = (significant(pick(ratio.ratio for ratio in series.ratios)) for pick in (min, max))
    mean = ratio_interval(series.mean.ratio, series.mean.low, series.mean.high)
    yield svg.text(_MEAN, y + 4, mean, anchor="end")
    yield svg.text(_RANGE, y + 4, f"{least} to {most}" if len(series.ratios) > 1 else "", anchor="end")
    yield svg.text(_CASES, y + 4, series.cases, anchor="end")
    yield svg.text(_SLOWER, y + 4, series.slower, anchor="end", fill="red" if series.slower else "ink")


def _mean_mark(low: float, middle: float, high: float, y: float) -> Iterator[Element]:
    yield svg.line(low, y, high, y, "ink", width=3)
    yield svg.diamond(middle, y, _DIAMOND, "ink", "page")


def _legend(y: float) -> Iterator[Element]:
    x = float(MARGIN)
    for colour, label in (("blue", "a case, faster"), ("weak", "undecided"), ("red", "slower (lost)")):
        yield svg.path(f"M{x + 4:g} {y - 11:g}v{2 * _TICK}", stroke=colour, width=1.5)
        yield svg.text(x + 12, y, label)
        x += 12 + width(label, svg.TEXT_SIZE) + _BETWEEN_SAMPLES
    yield from _mean_mark(x, x + 12, x + 24, y - 4)
    yield svg.text(x + 34, y, "geometric mean of all cases and of their 99 % bounds")
