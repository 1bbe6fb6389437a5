"""Words a second of the language models by their recurrent layers, in turns: steps as called, and as one CUDA graph each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import isfinite

import torch

from pytest_ecornn.measurement.measurement import gc_disabled
from pytest_ecornn.results.statistics import Ratio, median_interval, paired_ratio
from pytest_ecornn.suites.published.common import wall_clock
from pytest_ecornn.suites.published.common.item_rows import measure_rest, reason
from pytest_ecornn.suites.published.language_model_parts.recurrent_layers import BASELINE, DEFAULT, NONE, OURS
from pytest_ecornn.suites.published.language_model_parts.training import PRECISIONS, Corpus, ModelSizes, Training

EAGER, GRAPH = "eager", "graph"
STEP_KINDS = (EAGER, GRAPH)
HIDDEN = (650, 200)
ARMS = (BASELINE, DEFAULT, *OURS, NONE)
_ROUNDS = 9
_BLOCK_US = 1e5
_BATCHES = 64  # of words, over and over again


@dataclass(frozen=True)
class Configuration:
    """One model and the way in which its steps run. words: the corpus's source."""

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

    words_per_s: tuple[float, float, float] | None = None
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


def configurations(corpora: Sequence[Corpus], precisions: Collection[str] = PRECISIONS) -> list[Configuration]:
    """Both models in each precision and way, for each corpus; the smaller vocabulary first."""
    ordered = sorted(corpora, key=lambda corpus: corpus.vocabulary)
    return [
        Configuration(ModelSizes(hidden, corpus.vocabulary, precision), way, corpus.source)
        for corpus, way, precision, hidden in product(ordered, STEP_KINDS, PRECISIONS, HIDDEN)
        if precision in precisions
    ]


def measure(
    deadline: float, earlier: Sequence[Row], precisions: Collection[str], *, corpora: Sequence[Corpus],
    device: str = "cuda", make: Callable[[Sequence[Corpus], Collection[str]], list[Configuration]] = configurations,
) -> Iterator[Row]:  # fmt: skip
    """Earlier rows, then one for each other configuration; after `deadline` (of time.monotonic) the reason alone."""
    of_source = {(corpus.source, corpus.vocabulary): corpus for corpus in corpora}
    return measure_rest(
        make(corpora, precisions),
        earlier,
        lambda row: row.configuration,
        deadline,
        lambda one: _row(one, of_source[one.words, one.sizes.vocabulary], torch.device(device)),
        lambda one, why: Row(one, dict.fromkeys(ARMS, ArmRate(reason=why))),
    )


def _row(configuration: Configuration, corpus: Corpus, device: torch.device) -> Row:
    sizes = configuration.sizes
    if configuration.way == GRAPH and device.type != "cuda":
        return Row(configuration, dict.fromkeys(ARMS, ArmRate(reason=f"no CUDA graphs on {device.type}")))
    batches = corpus.batches(sizes.steps, sizes.batch, _BATCHES, device)
    with sizes.precision_set():
        trainings, reasons = _trainings(configuration, batches, device)
        with gc_disabled():  # what a step leaves is freed by its references
            samples_us = wall_clock.sample({name: one.step for name, one in trainings.items()}, device, _ROUNDS, _BLOCK_US)
    arms = {name: _arm(name, samples_us, sizes, trainings[name]) for name in samples_us}
    return Row(configuration, {name: arms[name] if name in arms else ArmRate(reason=reasons[name]) for name in ARMS})


def _trainings(
    configuration: Configuration, batches: torch.Tensor, device: torch.device
) -> tuple[dict[str, Training], dict[str, str]]:
    """The arms that run, warmed up, and why others do not."""
    trainings, reasons = {}, {}
    for name in ARMS:
        try:
            training = Training(name, configuration.sizes, batches, device)
            loss = float(training.step())
            if configuration.way == GRAPH:
                training.capture()
                loss = float(training.step())
            if not isfinite(loss):
                raise ValueError(f"expected a finite loss, got {loss}")
            trainings[name] = training
        except Exception as error:  # one arm's failure must not end the others' measurement
            reasons[name] = reason(error)
    return trainings, reasons


def _arm(name: str, samples_us: dict[str, list[float]], sizes: ModelSizes, training: Training) -> ArmRate:
    words = sizes.batch * sizes.steps
    median, low, high = median_interval([words * 1e6 / sample_us for sample_us in samples_us[name]])
    others = [other for other in (BASELINE, DEFAULT) if other in samples_us]
    over = {other: paired_ratio(samples_us[other], samples_us[name]) for other in others}
    return ArmRate((median, low, high), over, "", training.notes(), training.model.output_dtype)
