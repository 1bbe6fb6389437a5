"""The picture of one row's history: times with intervals on a logarithmic axis, steps, and exchanges of the machine."""

from __future__ import annotations

from collections.abc import Collection
from math import log

from markupsafe import Markup

from pytest_ecornn.publishing.history import Series

_WIDTH, _HEIGHT, _MARGIN = 200, 32, 3
_LEAST = log(1.1)  # the axis covers 10 % at least, so that noise looks like noise


def render(series: Series, runs: int, exchanged: Collection[int], label: str) -> Markup:
    """Returns SVG. runs: of the machine. exchanged: runs that were the first on another machine."""
    points = series.points
    low, high = log(min(point.low_us for point in points)), log(max(point.high_us for point in points))
    wider = max(0.0, _LEAST - (high - low)) / 2
    low, high = low - wider, high + wider

    def x(run: float) -> int:
        return round(_MARGIN + (_WIDTH - 2 * _MARGIN) * (run / (runs - 1) if runs > 1 else 0.5))

    def y(time_us: float) -> int:
        return round(_MARGIN + (_HEIGHT - 2 * _MARGIN) * (high - log(time_us)) / (high - low))

    line = " ".join(f"{x(point.run)},{y(point.time_us)}" for point in points)
    bars = "".join(f"M{x(point.run)} {y(point.low_us)}V{y(point.high_us)}" for point in points)
    marks = "".join(f'<path class="exchange" d="M{x(run - 0.5)} 0V{_HEIGHT}"/>' for run in sorted(exchanged))
    marks += "".join(f'<path class="step" d="M{x(step.run - 0.5)} 0V{_HEIGHT}"/>' for step in series.steps)
    head = Markup('<svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">').format(
        _WIDTH, _HEIGHT, label
    )
    return Markup(f'{head}<path d="{bars}"/><polyline points="{line}"/>{marks}</svg>')
