"""Tables, bars and charts of the language models' words a second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common.bar_chart import BarGroup, ChartBar, render_bars
from pytest_ecornn.suites.published.common.bars import MinTarget, format_ratio
from pytest_ecornn.suites.published.language_model_parts.recurrent_layers import BASELINE, DEFAULT, NONE, OURS
from pytest_ecornn.suites.published.language_model_parts.throughput import EAGER, GRAPH, STEP_KINDS, Row

_ECORNN, _AUTO = "transposed_gpu", "auto"
_PAPER = "EcoRNN's paper, Titan Xp, CUDA 8"
_OVER_CUDNN, _OVER_DEFAULT = 1.5, 3.0  # of EcoRNN, figure 4: up to
_LARGE = 30_000  # words
_LARGE_TARGET = MinTarget(1.25)
# By H, way and precision, of auto over the baseline with a vocabulary below _LARGE.
_TARGETS = {
    (650, EAGER, "float32"): MinTarget(1.7), (650, EAGER, "tf32"): MinTarget(1.6), (650, EAGER, "bfloat16"): MinTarget(1.6),
    **{(200, EAGER, precision): MinTarget(1.8) for precision in ("float32", "tf32", "bfloat16")},
    (650, GRAPH, "float32"): MinTarget(1.55), (650, GRAPH, "tf32"): MinTarget(1.7), (650, GRAPH, "bfloat16"): MinTarget(1.7),
}  # fmt: skip


def render(rows: Sequence[Row]) -> str:
    parts = [
        "## Words a second",
        "Two layers, B 32, T 35, dropout 0.5, tied softmax, clipping, SGD: EcoRNN's models of PTB. A step is all of that. "
        f"Blocks of 64 steps or 0.1 s by the wall clock, in turns. Ratios are words a second over {BASELINE}'s (cuDNN) with "
        f"their 99 % interval: over 1 is faster. {DEFAULT} is EcoRNN's default, a loop of torch's operators that multiplies in "
        f"float32 whatever the precision. {_ECORNN} is EcoRNN's layout. Limit: the ratio of a model without recurrent layer "
        f"and its weights, by Amdahl's law. Share: what of {BASELINE}'s step those take.",
        _dtypes(rows),
        targets(rows),
    ]
    for (words, vocabulary, way), of_table in _tables(rows):
        parts += [f"### {vocabulary:,} words by {escape(words)}, {_way(way)}", _table(of_table)]
    return document([*parts, _missing(rows), _choices(rows)])


def _dtypes(rows: Sequence[Row]) -> str:
    """Layers that compute in another dtype than the row's precision, as torch's autocast has it for cuDNN."""
    others = {
        (name, arm.dtype, row.configuration.sizes.precision)
        for row in rows
        for name, arm in row.arms.items()
        if arm.dtype not in ("", row.configuration.sizes.dtype) and name != NONE
    }
    return " ".join(f"{name} returns {dtype} in {precision} rows." for name, dtype, precision in sorted(others))


def _way(way: str) -> str:
    return "steps as called" if way == EAGER else "one CUDA graph a step"


def _tables(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, int, str], list[Row]]]:
    def key(row: Row) -> tuple[str, int, str]:
        return row.configuration.words, row.configuration.sizes.vocabulary, row.configuration.way

    measured = [row for row in rows if row.arms and row.arms[BASELINE].words_per_s]
    ordered = sorted(measured, key=lambda row: (*key(row)[:2], STEP_KINDS.index(row.configuration.way)))
    for of_key, chosen in groupby(ordered, key):
        yield of_key, list(chosen)


def _table(rows: Sequence[Row]) -> str:
    header = ("model", "precision", f"{BASELINE}, words/s", DEFAULT, *OURS, "limit", "share", f"{_ECORNN} over {DEFAULT}")
    return table(header, [list(_cells(row)) for row in rows], header[2:])


def _cells(row: Row) -> Iterator[str]:
    sizes, baseline = row.configuration.sizes, row.arms[BASELINE]
    yield from (f"2 x {sizes.hidden}", sizes.precision)
    yield f"{baseline.words_per_s[0]:,.0f}" if baseline.words_per_s else "-"
    yield from (_over(row, name, BASELINE) for name in (DEFAULT, *OURS))
    yield _over(row, NONE, BASELINE)
    yield f"{1 - 1 / row.limit.ratio:.0%}" if row.limit else "-"
    yield _over(row, _ECORNN, DEFAULT)


def _over(row: Row, name: str, other: str) -> str:
    ratio = row.arms[name].over.get(other)
    return format_ratio(ratio) if ratio else "-"


def targets(rows: Sequence[Row]) -> str:
    """Returns a table of the bars and what was measured."""
    lines = []
    for row in rows:
        if (bar := _auto_target(row)) and (ratio := row.arms[_AUTO].over.get(BASELINE)):
            lines.append(_target(f"{_AUTO} over {BASELINE}", row, ratio, bar))
    exact = [row for row in rows if row.configuration.sizes.precision == "float32"]  # in which the default computes
    for other, bar, judged in ((BASELINE, MinTarget(1.0), rows), (DEFAULT, MinTarget(_OVER_DEFAULT), exact)):
        if ratios := [(row, ratio) for row in judged if (ratio := row.arms[_ECORNN].over.get(other))]:
            row, ratio = min(ratios, key=lambda one: one[1].ratio)
            lines.append(_target(f"{_ECORNN} over {other}, lowest of {len(ratios)}", row, ratio, bar))
    return table(("figure", "where", "measured", "bar", "holds"), lines) if lines else ""


def _auto_target(row: Row) -> MinTarget | None:
    sizes, way = row.configuration.sizes, row.configuration.way
    return _LARGE_TARGET if sizes.vocabulary >= _LARGE else _TARGETS.get((sizes.hidden, way, sizes.precision))


def _target(what: str, row: Row, ratio: Ratio, bar: MinTarget) -> list[str]:
    return [what, escape(str(row.configuration)), format_ratio(ratio), str(bar), bar.is_met(ratio)]


def _missing(rows: Sequence[Row]) -> str:
    """Why arms have no figures, each reason once."""
    places: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, arm in row.arms.items():
            if arm.reason:
                places.setdefault((name, arm.reason), []).append(str(row.configuration))
    return "\n".join(
        f"- {name}, {len(labels)} rows, as {escape(labels[0])}: {escape(why)}" for (name, why), labels in places.items()
    )


def _choices(rows: Sequence[Row]) -> str:
    notes = [f"- {row.configuration}: {row.arms[_AUTO].notes}" for row in rows if row.arms[_AUTO].notes]
    return document(["### What auto chose", "\n".join(map(escape, notes))]) if notes else ""


def figures(rows: Sequence[Row]) -> dict[str, str]:
    """A bar chart a vocabulary and way, by file name."""
    pictures = {}
    for (words, vocabulary, way), of_table in _tables(rows):
        groups = [BarGroup(_title(row), [_bar(row, name) for name in (DEFAULT, BASELINE, *OURS)]) for row in of_table]
        paper = ChartBar(_ECORNN, Ratio(*(_OVER_CUDNN,) * 3), f"up to {significant(_OVER_CUDNN)}")
        groups.append(BarGroup(_PAPER, [ChartBar(BASELINE, Ratio(1.0, 1.0, 1.0)), paper]))
        title = f"Words a second over {BASELINE}'s, {vocabulary:,} words by {words}, {_way(way)}"
        notes = (f"{DEFAULT}: EcoRNN's default. {_ECORNN}: its layout. Bars are medians, lines their 99 % intervals.",)
        pictures[f"words_per_s_{vocabulary}_{way}.svg"] = render_bars(title, groups, notes).document()
    return pictures


def _title(row: Row) -> str:
    return f"2 x {row.configuration.sizes.hidden}, {row.configuration.sizes.precision}"


def _bar(row: Row, name: str) -> ChartBar:
    ratio = row.arms[name].over.get(BASELINE)
    return ChartBar(name, ratio, "" if ratio else "not run")
