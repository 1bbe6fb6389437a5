"""Ratios of many cases as an SVG strip chart: a tick per case, the geometric mean and its interval per series.

The picture fetches nothing: no fonts, scripts or links. Its white background keeps it legible on dark pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log2

from pytest_ecornn.reporting.picture import COLOURS
from pytest_ecornn.results.formatting import one_line, ratio_interval, significant
from pytest_ecornn.results.statistics import Ratio

FONTS = "-apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
# All in pixels. The columns from left to right: labels, the chart, mean, range, number of cases, number of slower cases.
_WIDTH, MARGIN = 1000, 20
_CHART_LEFT, _CHART_RIGHT = 296, 624
_MEAN, _RANGE, _CASES, _SLOWER = 760, 864, 938, 980
_TITLE_BASELINE, _HEAD_BASELINE, _FIRST_ROW = 30, 66, 78
_ROW, _HEADING, FOOTNOTE = 23, 32, 19
_TEXT_SIZE, _TITLE_SIZE = 13, 17
_TICK, _DIAMOND = 7, 6  # half heights
_INK, _RED, _BLUE, _GREY = COLOURS[0], COLOURS[1], COLOURS[4], COLOURS[7]
_GRID, _SLOWER_FILL, _BAND = "#d8dce0", "#fdf1f1", "#eef1f4"


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


@dataclass(frozen=True)
class _Axis:
    """Maps a ratio to a horizontal position; the ends are powers of two."""

    low: int
    high: int

    @classmethod
    def fit(cls, groups: Sequence[Group]) -> _Axis:
        bounds = [ratio.ratio for group in groups for series in group.series for ratio in series.ratios]
        bounds += [bound for group in groups for series in group.series for bound in (series.mean.low, series.mean.high)]
        return cls(min(-1, floor(log2(min(bounds)))), max(1, floor(log2(max(bounds))) + 1))

    def __call__(self, ratio: float) -> float:
        return _CHART_LEFT + (log2(ratio) - self.low) / (self.high - self.low) * (_CHART_RIGHT - _CHART_LEFT)

    @property
    def ticks(self) -> list[float]:
        return [2.0**power for power in range(self.low, self.high + 1)]


def render_chart(title: str, groups: Sequence[Group], footnotes: Sequence[str]) -> str:
    """The whole document. Raises ValueError where a series has no case."""
    if empty := [series.label for group in groups for series in group.series if not series.ratios]:
        raise ValueError(f"expected at least one case in each series, got none in {empty[0]!r}")
    axis = _Axis.fit(groups)
    rows = list(_rows(groups, axis))
    bottom = _FIRST_ROW + sum(_HEADING + _ROW * len(group.series) for group in groups) + 6
    legend = bottom + 50
    height = legend + FOOTNOTE * len(footnotes) + 16
    return svg_document(title, height, [*_frame(axis, bottom), *_head(axis), *rows, *_legend(legend)], footnotes, legend + 3)


def svg_document(title: str, height: float, parts: Iterable[str], footnotes: Sequence[str], footnotes_from: float) -> str:
    """A picture of 1,000 pixels' width: title, parts, and footnotes below `footnotes_from`, a line each."""
    lines = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" xmlns="http://www.w3.org/2000/svg" '
        f'font-family="{escape(FONTS)}" font-size="{_TEXT_SIZE}" role="img" aria-label="{escape(one_line(title))}">',
        '<rect width="100%" height="100%" rx="6" fill="white"/>',
        svg_text(MARGIN, _TITLE_BASELINE, title, size=_TITLE_SIZE, weight="bold"),
        *parts,
        *(svg_text(MARGIN, footnotes_from + FOOTNOTE * row, note, fill=_GREY) for row, note in enumerate(footnotes, 1)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _frame(axis: _Axis, bottom: int) -> Iterator[str]:
    """The half where ours is slower, tinted, and grid lines with their labels."""
    top = _FIRST_ROW - 2
    yield (
        f'<rect x="{_CHART_LEFT}" y="{top}" width="{axis(1) - _CHART_LEFT:.1f}" height="{bottom - top}" fill="{_SLOWER_FILL}"/>'
    )
    for tick in axis.ticks:
        x, is_one = axis(tick), tick == 1
        stroke = f'stroke="rgb{_INK}" stroke-width="1.5"' if is_one else f'stroke="{_GRID}"'
        yield f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" {stroke}/>'
        yield svg_text(x, bottom + 17, f"{tick:g}x", anchor="middle", weight="bold" if is_one else "normal")


def _head(axis: _Axis) -> Iterator[str]:
    yield svg_text(axis(1) - 6, _HEAD_BASELINE, "slower", anchor="end", fill=_RED)
    yield svg_text(axis(1) + 6, _HEAD_BASELINE, "faster than the baseline", fill=_BLUE)
    columns = ((_MEAN, "mean [bounds]"), (_RANGE, "range"), (_CASES, "cases"), (_SLOWER, "lost"))
    for x, label in columns:
        yield svg_text(x, _HEAD_BASELINE, label, anchor="end", fill=_GREY)


def _rows(groups: Sequence[Group], axis: _Axis) -> Iterator[str]:
    y = float(_FIRST_ROW)
    for group in groups:
        yield f'<rect x="{MARGIN - 8}" y="{y + 4:g}" width="{_WIDTH - 2 * (MARGIN - 8)}" height="23" rx="3" fill="{_BAND}"/>'
        yield svg_text(MARGIN, y + 20, group.title, weight="bold")
        y += _HEADING
        for series in group.series:
            yield from _series(series, axis, y + _ROW / 2)
            y += _ROW


def _series(series: Series, axis: _Axis, y: float) -> Iterator[str]:
    """One line: label, a tick per case, the mean with its interval, and figures."""
    yield svg_text(MARGIN + 14, y + 4, series.label)
    verdicts: tuple[tuple[tuple[int, int, int], Callable[[Ratio], bool]], ...] = (
        (_BLUE, lambda ratio: ratio.low > 1),
        (_GREY, lambda ratio: ratio.low <= 1 <= ratio.high),
        (_RED, lambda ratio: ratio.high < 1),
    )
    for colour, is_so in verdicts:
        if xs := [axis(ratio.ratio) for ratio in series.ratios if is_so(ratio)]:
            path = "".join(f"M{x:.1f} {y - _TICK:g}v{2 * _TICK}" for x in sorted(xs))
            yield f'<path d="{path}" stroke="rgb{colour}" stroke-width="1.5" stroke-opacity="0.55" fill="none"/>'
    yield from _mean_mark(axis(series.mean.low), axis(series.mean.ratio), axis(series.mean.high), y)
    least, most = (significant(pick(ratio.ratio for ratio in series.ratios)) for pick in (min, max))
    mean = ratio_interval(series.mean.ratio, series.mean.low, series.mean.high)
    yield svg_text(_MEAN, y + 4, mean, anchor="end")
    yield svg_text(_RANGE, y + 4, f"{least} to {most}" if len(series.ratios) > 1 else "", anchor="end")
    yield svg_text(_CASES, y + 4, series.cases, anchor="end")
    yield svg_text(_SLOWER, y + 4, str(series.slower), anchor="end", fill=_RED if series.slower else _INK)


def _mean_mark(low: float, middle: float, high: float, y: float) -> Iterator[str]:
    yield f'<line x1="{low:.1f}" y1="{y:g}" x2="{high:.1f}" y2="{y:g}" stroke="rgb{_INK}" stroke-width="3"/>'
    shape = f"M{middle - _DIAMOND:.1f} {y:g}l{_DIAMOND} -{_DIAMOND}l{_DIAMOND} {_DIAMOND}l-{_DIAMOND} {_DIAMOND}z"
    yield f'<path d="{shape}" fill="rgb{_INK}" stroke="white"/>'


def _legend(y: float) -> Iterator[str]:
    x = float(MARGIN)
    for colour, label in ((_BLUE, "a case, faster"), (_GREY, "undecided"), (_RED, "slower (lost)")):
        yield f'<path d="M{x + 4:g} {y - 11:g}v{2 * _TICK}" stroke="rgb{colour}" stroke-width="1.5"/>'
        yield svg_text(x + 12, y, label)
        x += 30 + 8 * len(label)
    yield from _mean_mark(x, x + 12, x + 24, y - 4)
    yield svg_text(x + 34, y, "geometric mean of all cases and of their 99 % bounds")


def svg_text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = _TEXT_SIZE,
    weight: str = "normal",
    fill: tuple[int, int, int] = _INK,
) -> str:
    """One line of text."""
    style = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="rgb{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(one_line(text))}</text>'
