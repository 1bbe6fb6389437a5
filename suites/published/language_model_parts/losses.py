"""Losses of the language models by their recurrent layers: curves beside float64, and means of seeds with dropout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from statistics import fmean, stdev

import torch

from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.suites.published.common.item_rows import attempt_each, measure_rest
from pytest_ecornn.suites.published.language_model_parts.recurrent_layers import BASELINE, OURS, YARDSTICK, ModelSizes
from pytest_ecornn.suites.published.language_model_parts.throughput import HIDDEN
from pytest_ecornn.suites.published.language_model_parts.training import PRECISIONS, Corpus, Training
from pytest_ecornn.verification.comparison import MAX_FACTOR, MAX_FLOOR, RMS_FACTOR, RMS_FLOOR
from pytest_ecornn.verification.layer_rules import precision_eps

STEPS, SEEDS, LAST = 200, 5, 50  # LAST: steps whose mean loss stands for a run with dropout
ARMS = (BASELINE, *OURS)


@dataclass(frozen=True)
class Curve:
    """A run without dropout. rms, maximum: errors of its losses, relative to those in float64. reason: why there is none."""

    rms: float = 0.0
    maximum: float = 0.0
    last: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class ModelRow:
    """What was measured of one model in one precision. words: the corpus's source."""

    sizes: ModelSizes
    words: str

    @property
    def label(self) -> str:
        return f"{self.sizes.label}, {self.words}"


@dataclass(frozen=True)
class CurveRow(ModelRow):
    """All curves. limits: rms and maximum that the yardstick's own errors allow."""

    arms: dict[str, Curve] = field(default_factory=dict)
    limits: tuple[float, float] = (0.0, 0.0)

    def agrees(self, name: str) -> bool:
        curve = self.arms[name]
        return not curve.reason and curve.rms <= self.limits[0] and curve.maximum <= self.limits[1]


@dataclass(frozen=True)
class SeedRow(ModelRow):
    """Final losses with dropout: of each arm one a seed, or the reason why it has none."""

    losses: dict[str, list[float]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{super().label}, dropout {self.sizes.dropout:g}"

    def agrees(self, name: str) -> bool:
        """Whether the mean is as far from the baseline's as both standard deviations together, or nearer."""
        own, others = self.losses[name], self.losses[BASELINE]
        return abs(fmean(own) - fmean(others)) <= stdev(own) + stdev(others)


def models(corpus: Corpus, dropout: float) -> list[ModelSizes]:
    """Both models in each precision."""
    return [
        ModelSizes(hidden, corpus.vocabulary, precision, dropout) for hidden, precision in product(HIDDEN[::-1], PRECISIONS)
    ]


def measure_curves(
    deadline: float, earlier: Sequence[CurveRow] = (), *, corpus: Corpus, device: str = "cuda"
) -> Iterator[CurveRow]:
    """Earlier rows, then one for each other model; after `deadline` (of time.monotonic) the reason alone."""

    def without(sizes: ModelSizes, why: str) -> CurveRow:
        return CurveRow(sizes, corpus.source, dict.fromkeys(ARMS, Curve(reason=why)))

    row = partial(_curve_row, corpus=corpus, device=torch.device(device))
    return measure_rest(models(corpus, 0.0), earlier, deadline, row, without, partial(_sizes_of, corpus))


def _sizes_of(corpus: Corpus, row: ModelRow) -> ModelSizes | None:
    """The model that a row is of, None where it learnt other words."""
    return row.sizes if row.words == corpus.source else None


def _curve_row(sizes: ModelSizes, corpus: Corpus, device: torch.device) -> CurveRow:
    exact = torch.tensor(_losses(BASELINE, replace(sizes, precision="float64"), corpus, device), dtype=torch.float64)

    def curve(name: str) -> Curve:
        losses = torch.tensor(_losses(name, sizes, corpus, device), dtype=torch.float64)
        errors = losses - exact
        rms = float(errors.norm() / exact.norm())
        return Curve(rms, float(errors.abs().max() / exact.abs().max()), float(losses[-1]))

    yardstick = curve(YARDSTICK)
    eps = precision_eps(sizes.case(str(device)))
    rms_limit = RMS_FACTOR * yardstick.rms + RMS_FLOOR * eps / len(exact) ** 0.5
    curves, reasons = attempt_each(ARMS, curve)
    arms = {name: curves[name] if name in curves else Curve(reason=reasons[name]) for name in ARMS}
    return CurveRow(sizes, corpus.source, arms, (rms_limit, MAX_FACTOR * yardstick.maximum + MAX_FLOOR * eps))


def measure_seeds(
    deadline: float, earlier: Sequence[SeedRow] = (), *, corpus: Corpus, device: str = "cuda"
) -> Iterator[SeedRow]:
    """Yields rows as measure_curves does, with dropout and SEEDS runs of each arm."""

    def without(sizes: ModelSizes, why: str) -> SeedRow:
        return SeedRow(sizes, corpus.source, {}, dict.fromkeys(ARMS, why))

    row = partial(_seed_row, corpus=corpus, device=torch.device(device))
    return measure_rest(models(corpus, 0.5), earlier, deadline, row, without, partial(_sizes_of, corpus))


def _seed_row(sizes: ModelSizes, corpus: Corpus, device: torch.device) -> SeedRow:
    def last_losses(name: str) -> list[float]:
        return [fmean(_losses(name, sizes, corpus, device, seed)[-LAST:]) for seed in range(SEEDS)]

    return SeedRow(sizes, corpus.source, *attempt_each(ARMS, last_losses))


def _losses(name: str, sizes: ModelSizes, corpus: Corpus, device: torch.device, seed: int = 0) -> list[float]:
    """Losses of STEPS steps."""
    with sizes.precision_set():
        training = Training(name, sizes, corpus.batches(sizes.steps, sizes.batch, STEPS, device), device, seed)
        losses = torch.stack([training.step().clone() for _ in range(STEPS)])
    result: list[float] = losses.double().tolist()
    return result


def render_curves(rows: Sequence[CurveRow]) -> str:
    """A line for each model, precision and layer."""
    header = ("model", "layer", "last loss", "rms error", "limit", "largest error", "limit", "agrees")
    lines = [_curve_line(row, name) for row in rows for name in ARMS if name in row.arms]
    text = (
        f"{STEPS} steps, the same words and initial values, no dropout. Of drawn words nine in ten follow from the one "
        "before, so that the loss falls as the recurrent layer learns it. Errors are relative to losses in float64. "
        "A curve agrees where they are within twice those of the yardstick, a plain loop in the same precision, and a few "
        "roundings."
    )
    return document(["## Losses without dropout", text, table(header, lines, header[2:7])])


def _curve_line(row: CurveRow, name: str) -> list[str]:
    curve = row.arms[name]
    if curve.reason:
        return [row.label, name, *["-"] * 5, escape(curve.reason)]
    figures = (curve.rms, row.limits[0], curve.maximum, row.limits[1])
    return [row.label, name, f"{curve.last:.4f}", *map("{:.2g}".format, figures), "yes" if row.agrees(name) else "no"]


def render_seeds(rows: Sequence[SeedRow]) -> str:
    """A line for each model, precision and layer."""
    header = ("model", "layer", "mean loss", "standard deviation", "agrees")
    lines = [_seed_line(row, name) for row in rows for name in ARMS if name in row.losses or name in row.reasons]
    text = (
        f"{SEEDS} seeds of {STEPS} steps each; a run's loss is the mean of its last {LAST} steps. A mean "
        f"agrees where it differs from {BASELINE}'s by no more than both standard deviations together."
    )
    return document(["## Losses with dropout", text, table(header, lines, header[2:4])])


def _seed_line(row: SeedRow, name: str) -> list[str]:
    if name in row.reasons:
        return [row.label, name, "-", "-", escape(row.reasons[name])]
    of_seeds = row.losses[name]
    agrees = "yes" if BASELINE in row.losses and row.agrees(name) else "no"
    return [row.label, name, f"{fmean(of_seeds):.4f}", significant(stdev(of_seeds), 2), agrees]
