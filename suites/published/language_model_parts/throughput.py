"""Words a second of the language models by their recurrent layers, in turns: steps as called, and as one CUDA graph each.

Measured, then as tables beside their bars, and as charts: ratios as horizontal bars from 0, in groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, product
from math import ceil, isfinite
from xml.etree.ElementTree import Element

import torch

from pytest_ecornn.measurement.alternating import sample
from pytest_ecornn.measurement.measurement import gc_disabled
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.reporting.pictures import svg
from pytest_ecornn.reporting.pictures.page import MARGIN, page
from pytest_ecornn.results.formatting import ratio_interval, significant
from pytest_ecornn.results.statistics import Ratio, median_interval, paired_ratio
from pytest_ecornn.suites.published.common.bars import MinTarget, Times, format_ratio
from pytest_ecornn.suites.published.common.item_rows import attempt_each, group, measure_rest
from pytest_ecornn.suites.published.language_model_parts.recurrent_layers import BASELINE, DEFAULT, NONE, OURS, ModelSizes
from pytest_ecornn.suites.published.language_model_parts.training import PRECISIONS, Corpus, Training

EAGER, GRAPH = "eager", "graph"
_STEP_LABELS = {EAGER: "steps as called", GRAPH: "one CUDA graph a step"}
STEP_KINDS = tuple(_STEP_LABELS)
HIDDEN = (650, 200)
ARMS = (BASELINE, DEFAULT, *OURS, NONE)
_ROUNDS = 9
_BLOCK_US = 1e5
_BATCHES = 64  # of words, over and over again
_ECORNN, _AUTO = "transposed_gpu", "auto"
_PAPER = "EcoRNN's paper, Titan Xp, CUDA 8"
_OVER_CUDNN, _OVER_DEFAULT = 1.5, 3.0  # of EcoRNN, figure 4: up to
_CHARTED = (DEFAULT, BASELINE, *OURS)
_LARGE = 30_000  # words
_LARGE_TARGET = MinTarget(1.25)
# By H, kind of steps and precision, of auto over the baseline with a vocabulary below _LARGE.
_TARGETS = {
    (650, EAGER, "float32"): MinTarget(1.7), (650, EAGER, "tf32"): MinTarget(1.6), (650, EAGER, "bfloat16"): MinTarget(1.6),
    **{(200, EAGER, precision): MinTarget(1.8) for precision in ("float32", "tf32", "bfloat16")},
    (650, GRAPH, "float32"): MinTarget(1.55), (650, GRAPH, "tf32"): MinTarget(1.7), (650, GRAPH, "bfloat16"): MinTarget(1.7),
}  # fmt: skip
# In pixels: where bars begin and end, where their figures end, and from the top the first bar, and what rows take.
_LEFT, _RIGHT, _FIGURE = 390, 800, 980
_FIRST, _ROW, _BETWEEN, _BAR = 70, 20, 12, 13
_COLOURS = ("weak", "ochre", "purple", "teal", "green", "blue")
_STEPS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_MAX_TICKS = 8


@dataclass(frozen=True)
class Configuration:
    """One model. way: of STEP_KINDS. words: the corpus's source."""

    sizes: ModelSizes
    way: str
    words: str

    def __str__(self) -> str:
        return f"2 x {self.sizes.hidden}, {self.sizes.vocabulary:,} words, {self.sizes.precision}, {self.way}"


@dataclass(frozen=True)
class ArmRate:
    """One recurrent layer's training. words_per_s: median, low, high. over: its words a second over another arm's, by name.

    reason: why it has no figures, or "". notes: what auto says of its choice. dtype: of the recurrent layer's output.
    """

    words_per_s: Times | None = None
    over: dict[str, Ratio] = field(default_factory=dict)
    reason: str = ""
    notes: str = ""
    dtype: str = ""


@dataclass(frozen=True)
class Row:
    configuration: Configuration
    arms: dict[str, ArmRate] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.configuration}, {self.configuration.words}"

    @property
    def limit(self) -> Ratio | None:
        """The speedup over the baseline of a model without recurrent layer, by Amdahl's law."""
        return self.arms[NONE].over.get(BASELINE) if NONE in self.arms else None


def configurations(corpora: Sequence[Corpus]) -> list[Configuration]:
    """Both models in each precision and kind of steps, for each corpus; the smaller vocabulary first."""
    ordered = sorted(corpora, key=lambda corpus: corpus.vocabulary)
    return [
        Configuration(ModelSizes(hidden, corpus.vocabulary, precision), step_kind, corpus.source)
        for corpus, step_kind, precision, hidden in product(ordered, STEP_KINDS, PRECISIONS, HIDDEN)
    ]


def measure(deadline: float, earlier: Sequence[Row], *, corpora: Sequence[Corpus], device: str = "cuda") -> Iterator[Row]:
    """Earlier rows, then one for each other configuration; after `deadline` (of time.monotonic) the reason alone."""
    of_source = {(corpus.source, corpus.vocabulary): corpus for corpus in corpora}

    def row(configuration: Configuration) -> Row:
        return _row(configuration, of_source[configuration.words, configuration.sizes.vocabulary], torch.device(device))

    def without(configuration: Configuration, why: str) -> Row:
        return Row(configuration, dict.fromkeys(ARMS, ArmRate(reason=why)))

    return measure_rest(configurations(corpora), earlier, deadline, row, without)


def _row(configuration: Configuration, corpus: Corpus, device: torch.device) -> Row:
    sizes = configuration.sizes
    if configuration.way == GRAPH and device.type != "cuda":
        return Row(configuration, dict.fromkeys(ARMS, ArmRate(reason=f"no CUDA graphs on {device.type}")))
    batches = corpus.batches(sizes.steps, sizes.batch, _BATCHES, device)
    with sizes.precision_set():
        trainings, reasons = attempt_each(ARMS, lambda name: _warm_training(name, configuration, batches, device))
        with gc_disabled():  # what a step leaves is freed by its references
            samples_us = sample({name: arm.step for name, arm in trainings.items()}, device, _ROUNDS, _BLOCK_US)
    arms = {name: _arm(name, samples_us, sizes, trainings[name]) for name in samples_us}
    return Row(configuration, {name: arms[name] if name in arms else ArmRate(reason=reasons[name]) for name in ARMS})


def _warm_training(name: str, configuration: Configuration, batches: torch.Tensor, device: torch.device) -> Training:
    """An arm that has made a step. Raises whatever it raises where it does not run."""
    training = Training(name, configuration.sizes, batches, device)
    loss = float(training.step())
    if configuration.way == GRAPH:
        training.capture()
        loss = float(training.step())
    if not isfinite(loss):
        raise ValueError(f"expected a finite loss, got {loss}")
    return training


def _arm(name: str, samples_us: dict[str, list[float]], sizes: ModelSizes, training: Training) -> ArmRate:
    words = sizes.batch * sizes.steps
    median, low, high = median_interval([words * 1e6 / sample_us for sample_us in samples_us[name]])
    others = [other for other in (BASELINE, DEFAULT) if other in samples_us]
    over = {other: paired_ratio(samples_us[other], samples_us[name]) for other in others}
    return ArmRate((median, low, high), over, "", training.notes(), training.model.output_dtype)


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
    header = ("model", "precision", f"{BASELINE}, words/s", DEFAULT, *OURS, "limit", "share", f"{_ECORNN} over {DEFAULT}")
    for (words, vocabulary, step_kind), of_table in _tables(rows):
        lines = [list(_cells(row)) for row in of_table]
        heading = f"### {vocabulary:,} words by {escape(words)}, {_STEP_LABELS[step_kind]}"
        parts += [heading, table(header, lines, header[2:])]
    notes = "\n".join(escape(f"- {row.configuration}: {why}") for row in rows if (why := row.arms[_AUTO].notes))
    return document([*parts, _missing(rows), *(("### What auto chose", notes) if notes else ())])


def _dtypes(rows: Sequence[Row]) -> str:
    """Layers that compute in another dtype than the row's precision, as torch's autocast has it for cuDNN."""
    others = {
        (name, arm.dtype, row.configuration.sizes.precision)
        for row in rows
        for name, arm in row.arms.items()
        if arm.dtype not in ("", row.configuration.sizes.dtype) and name != NONE
    }
    return " ".join(f"{name} returns {dtype} in {precision} rows." for name, dtype, precision in sorted(others))


def _tables(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, int, str], list[Row]]]:
    def key(row: Row) -> tuple[str, int, str]:
        return row.configuration.words, row.configuration.sizes.vocabulary, row.configuration.way

    measured = [row for row in rows if row.arms and row.arms[BASELINE].words_per_s]
    ordered = sorted(measured, key=lambda row: (*key(row)[:2], STEP_KINDS.index(row.configuration.way)))
    for of_key, chosen in groupby(ordered, key):
        yield of_key, list(chosen)


def _cells(row: Row) -> Iterator[str]:
    sizes, baseline = row.configuration.sizes, row.arms[BASELINE]
    yield from (f"2 x {sizes.hidden}", sizes.precision)
    yield f"{baseline.words_per_s[0]:,.0f}" if baseline.words_per_s else "-"
    yield from (format_ratio(row.arms[name].over.get(BASELINE)) for name in (DEFAULT, *OURS, NONE))
    yield f"{1 - 1 / row.limit.ratio:.0%}" if row.limit else "-"
    yield format_ratio(row.arms[_ECORNN].over.get(DEFAULT))


def targets(rows: Sequence[Row]) -> str:
    """Returns a table of the bars and what was measured."""
    lines = []
    for row in rows:
        sizes, step_kind = row.configuration.sizes, row.configuration.way
        bar = _LARGE_TARGET if sizes.vocabulary >= _LARGE else _TARGETS.get((sizes.hidden, step_kind, sizes.precision))
        if bar and (ratio := row.arms[_AUTO].over.get(BASELINE)):
            lines.append([f"{_AUTO} over {BASELINE}", escape(str(row.configuration)), *bar.cells(ratio)])
    exact = [row for row in rows if row.configuration.sizes.precision == "float32"]  # in which the default computes
    for other, bar, judged in ((BASELINE, MinTarget(1.0), rows), (DEFAULT, MinTarget(_OVER_DEFAULT), exact)):
        if ratios := [(row, ratio) for row in judged if (ratio := row.arms[_ECORNN].over.get(other))]:
            row, ratio = min(ratios, key=lambda pair: pair[1].ratio)
            label = f"{_ECORNN} over {other}, lowest of {len(ratios)}"
            lines.append([label, escape(str(row.configuration)), *bar.cells(ratio)])
    return table(("figure", "where", "measured", "bar", "holds"), lines) if lines else ""


def _missing(rows: Sequence[Row]) -> str:
    """Why arms have no figures, each reason once."""
    missing = ((name, arm.reason, str(row.configuration)) for row in rows for name, arm in row.arms.items() if arm.reason)
    places = group(((name, why), label) for name, why, label in missing)
    return "\n".join(
        f"- {name}, {len(labels)} rows, as {escape(labels[0])}: {escape(why)}" for (name, why), labels in places.items()
    )


def figures(rows: Sequence[Row]) -> dict[str, str]:
    """A bar chart a vocabulary and kind of steps, by file name."""
    pictures = {}
    for (words, vocabulary, step_kind), of_table in _tables(rows):
        groups = {
            row.configuration.sizes.label: [ChartBar(name, row.arms[name].over.get(BASELINE)) for name in _CHARTED]
            for row in of_table
        }
        paper = ChartBar(_ECORNN, Ratio(*(_OVER_CUDNN,) * 3), f"up to {significant(_OVER_CUDNN)}")
        groups[_PAPER] = [ChartBar(BASELINE, Ratio(1.0, 1.0, 1.0)), paper]
        title = f"Words a second over {BASELINE}'s, {vocabulary:,} words by {words}, {_STEP_LABELS[step_kind]}"
        notes = (f"{DEFAULT}: EcoRNN's default. {_ECORNN}: its layout. Bars are medians, lines their 99 % intervals.",)
        pictures[f"words_per_s_{vocabulary}_{step_kind}.svg"] = render_bars(title, groups, notes).document()
    return pictures


@dataclass(frozen=True)
class ChartBar:
    """One ratio, with its interval where it has one; None where it was not run. text: in place of the figure."""

    label: str
    ratio: Ratio | None
    text: str = ""


def render_bars(title: str, groups: Mapping[str, Sequence[ChartBar]], footnotes: Sequence[str]) -> svg.Picture:
    """The whole picture: bars under the title of each group. Those of one label have one colour in all groups."""
    bars = [bar for group in groups.values() for bar in group]
    end = max(1.0, *(bar.ratio.high for bar in bars if bar.ratio))
    labels = list(dict.fromkeys(bar.label for bar in bars))
    bottom = _FIRST + _ROW * len(bars) + _BETWEEN * len(groups)
    return page(title, [*_grid(end, bottom), *_groups(groups, end, labels)], footnotes, bottom + 49)


def _x(ratio: float, end: float) -> float:
    return _LEFT + ratio / end * (_RIGHT - _LEFT)


def _grid(end: float, bottom: int) -> Iterator[Element]:
    step = next((step for step in _STEPS if end / step <= _MAX_TICKS), end)
    for number in range(ceil(end / step) + 1):
        tick = number * step
        if tick > end:
            return
        x, is_one = _x(tick, end), tick == 1
        yield svg.line(x, _FIRST - 12, x, bottom, "ink" if is_one else "grid", width=1.5 if is_one else 1)
        yield svg.text(x, bottom + 16, f"{tick:g}x", anchor="middle", is_bold=is_one)


def _groups(groups: Mapping[str, Sequence[ChartBar]], end: float, labels: Sequence[str]) -> Iterator[Element]:
    y = _FIRST
    for title, bars in groups.items():
        yield svg.text(MARGIN, y + 10, title, is_bold=True)
        for bar in bars:
            yield from _bar(bar, y, end, _COLOURS[labels.index(bar.label) % len(_COLOURS)])
            y += _ROW
        y += _BETWEEN


def _bar(bar: ChartBar, y: int, end: float, colour: str) -> Iterator[Element]:
    yield svg.text(_LEFT - 8, y + 10, bar.label, anchor="end")
    if bar.ratio is None:
        yield svg.text(_LEFT + 6, y + 10, "not run", fill="weak")
        return
    middle, low, high = bar.ratio.ratio, bar.ratio.low, bar.ratio.high
    yield svg.rectangle(_LEFT, y - 1, _x(middle, end) - _LEFT, _BAR, colour, role="bar")
    if high > low:
        halfway = y + _BAR // 2 - 1
        for stroke, width in (("page", 5.0), ("ink", 2.0)):  # ink is told apart from the bar by an edge
            yield svg.line(_x(low, end), halfway, _x(high, end), halfway, stroke, width=width)
    figure = bar.text or (ratio_interval(middle, low, high) if high > low else f"{middle:.3g}")
    yield svg.text(_FIGURE, y + 10, figure, anchor="end")
