"""Times of single steps: cases as real-time users have them, blocks that take turns, and calls that are clocked one by one.

Measured, then as tables: times, ratios, percentiles, and the bars of `stream`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil
from random import Random
from typing import Any

import numpy as np
import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.measurement.alternating import sample
from pytest_ecornn.measurement.clocks import WallTimer
from pytest_ecornn.measurement.measurement import gc_disabled
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.statistics import Ratio, median_interval, paired_ratio
from pytest_ecornn.suites.published.common.bars import MaxTarget, MinTarget, Times, format_ratio
from pytest_ecornn.suites.published.common.item_rows import ItemRow, attempt_each, measure_rest
from pytest_ecornn.suites.published.streaming_parts import stream_calls
from pytest_ecornn.suites.published.streaming_parts.stream_calls import BOUND, NAMES, ONNX, SHOWN, TORCH, StreamProblem
from pytest_ecornn.system.machine import one_thread

BASELINES = (TORCH, ONNX)
PERCENTILES = (50.0, 99.0, 99.9)
_JUDGED_STEPS = 20
_ROUNDS, _BLOCK_US, _MAX_CALLS = 21, 6e3, 10_000
# Calls of each candidate that are clocked alone: MAX_CALLS, of slow ones as many as take so long, but MIN_CALLS.
_MIN_CALLS, _CLOCKED_CALLS, _CLOCKED_US = 1_000, 10_000, 6e5
_CHUNKS, _UNTIMED = 20, 10  # turns, and calls before each, which find another candidate's data in the caches
_SMALL = (8, 32, 64, 128)
# How many times as long a baseline has to take as a candidate, of one layer and one sequence of these H.
BARS = (
    (BOUND, TORCH, _SMALL, MinTarget(20.0)),
    (BOUND, ONNX, _SMALL, MinTarget(2.5)),
    (BOUND, TORCH, (256,), MinTarget(2.5)),
    (BOUND, ONNX, (256,), MinTarget(1.0)),
    (stream_calls.BFLOAT16, ONNX, (512,), MinTarget(1.5)),
    (stream_calls.MODULE, TORCH, _SMALL, MinTarget(5.0)),
)
_TAIL_HIDDEN_SIZE = 64  # where bound's percentiles are to be no farther apart than ONNX Runtime's


@dataclass(frozen=True)
class StreamCase:
    """Layers and the sequences of a step. input_size: 0 for H. name: of the use that has this size, or ""."""

    cell: str
    hidden_size: int
    batch: int = 1
    name: str = ""
    layers: int = 1
    input_size: int = 0

    def __str__(self) -> str:
        layers = f"{self.layers} x " * (self.layers > 1)
        inputs = f", I {self.input_size}" * (self.input_size > 0)
        return f"{self.cell} {layers}{self.hidden_size}{inputs}, B {self.batch}{f' ({self.name})' * bool(self.name)}"

    @property
    def is_plain(self) -> bool:
        """Whether it is of one layer, one sequence, and I = H."""
        return (self.layers, self.batch, self.input_size) == (1, 1, 0)

    def problem(self) -> StreamProblem:
        case = Case(
            cell=self.cell, steps=_JUDGED_STEPS, batch=self.batch, hidden_size=self.hidden_size, input_size=self.input_size,
            layers=self.layers, has_state=True,
        )  # fmt: skip
        return StreamProblem(case)


NAMED = (
    StreamCase("lstm", 24, 1, "guitar amplifier", input_size=1),
    StreamCase("lstm", 8, 1, "guitar amplifier", layers=2, input_size=1),
    StreamCase("lstm", 64, 1, "voice activity", layers=2),
    *(StreamCase("gru", hidden, 1, "denoising", layers=3) for hidden in (24, 96, 256)),
    *(StreamCase("lstm", hidden, batch, "policy") for hidden in (64, 256) for batch in (1, 16)),
)


def _cases() -> Iterator[StreamCase]:
    """Named ones, and sizes over which times are compared; of a single sequence first."""
    sizes = [*product((1,), (8, 32, 64, 128, 256, 512)), *product((4, 16), (32, 128, 256))]
    unnamed = [StreamCase(cell, hidden, batch) for cell in ("lstm", "gru") for batch, hidden in sizes]
    known = {replace(case, name="") for case in NAMED}
    cases = (*NAMED, *(case for case in unnamed if case not in known))
    yield from sorted(cases, key=lambda case: (case.batch, case.layers, case.cell != "lstm", case.hidden_size))


CASES = tuple(_cases())


@dataclass(frozen=True)
class StepTime:
    """A candidate's time of a step. over: by baseline, how many times as long that takes.

    percentiles_us: PERCENTILES of so many single calls.
    """

    time_us: Times
    over: dict[str, Ratio]
    percentiles_us: tuple[float, float, float]
    calls: int

    @property
    def tail(self) -> float:
        """The 99.9 % percentile over the median."""
        return self.percentiles_us[2] / self.percentiles_us[0]


@dataclass(frozen=True)
class Row(ItemRow):
    """Times by candidate. reasons: why others have none, or by "all" why there is none."""

    case: StreamCase
    times: dict[str, StepTime] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def measure(deadline: float, earlier: Sequence[Row] = (), cases: Sequence[StreamCase] = CASES) -> Iterator[Row]:
    """Earlier rows, then one for each other case; after `deadline` (of time.monotonic) the reason alone."""
    return measure_rest(cases, earlier, deadline, _row, lambda case, why: Row(case, reasons={"all": why}))


def _row(case: StreamCase) -> Row:
    with one_thread(), torch.no_grad():
        candidates, reasons = attempt_each(NAMES, case.problem().make)
        calls = {name: candidate.step for name, candidate in candidates.items()}
        with gc_disabled():
            samples = sample(calls, torch.device("cpu"), _ROUNDS, _BLOCK_US, _MAX_CALLS)
            single = _clock_each(calls, {name: float(np.median(times)) for name, times in samples.items()})
    return Row(case, {name: _time(name, samples, single[name]) for name in calls}, reasons)


def _time(name: str, samples: Mapping[str, Sequence[float]], single: Sequence[float]) -> StepTime:
    over = {other: paired_ratio(samples[other], samples[name]) for other in BASELINES if other in samples}
    median, high, highest = map(float, np.percentile(single, PERCENTILES))
    return StepTime(median_interval(samples[name]), over, (median, high, highest), len(single))


def _clock_each(calls: Mapping[str, Callable[[], Any]], time_us: Mapping[str, float]) -> dict[str, list[float]]:
    """Times of single calls in us. Candidates take turns, so that a disturbance does not meet one alone."""
    single: dict[str, list[float]] = {name: [] for name in calls}
    timer, order, random = WallTimer(), list(calls), Random(0)
    for _ in range(_CHUNKS):
        random.shuffle(order)
        for name in order:
            call = (calls[name],)
            timer.time(call * _UNTIMED)
            count = min(_CLOCKED_CALLS, max(_MIN_CALLS, _CLOCKED_US / time_us[name]))
            single[name] += [timer.time(call) * 1e6 for _ in range(ceil(count / _CHUNKS))]
    return single


def render(rows: Sequence[Row]) -> str:
    reasons = [(row, name, why) for row in rows for name, why in row.reasons.items() if why not in SHOWN]
    bars = [[escape(row.label), *line] for row in rows if row.case.is_plain for line in _bar_lines(row)]
    header = ("layer", "figure", "measured", "bar", "holds")
    parts = [
        "## Steps",
        "One step a call on one thread, the state carried on, in float32. JAX has threads of its own. What is wrong after some "
        "carried steps has no time. us a step: medians of blocks of calls that take turns (99 % intervals).",
        _table(rows, lambda time: "{} [{}, {}]".format(*map(significant, time.time_us))),
        *(part for baseline in BASELINES for part in _ratios(rows, baseline)),
        "### Single calls",
        "us of calls that are clocked one by one: 50, 99 and 99.9 %, the last over the first, and the number of calls.",
        _table(rows, _percentiles),
        "\n".join(f"- {escape(row.label)}, {escape(name)}: {escape(why)}" for row, name, why in reasons),
        "### Bars",
        table(header, bars, header[2:3]) if bars else "None of these is measured.",
    ]
    return document(parts)


def _table(rows: Sequence[Row], cell: Callable[[StepTime], str]) -> str:
    """A column for each candidate."""

    def cells(row: Row) -> Iterator[str]:
        for name in NAMES:
            reason = row.reasons.get(name, "-")
            yield cell(row.times[name]) if name in row.times else reason if reason in SHOWN else "-"

    lines = [[escape(row.label), *cells(row)] for row in rows if row.times]
    return table(("layer", *NAMES), lines, NAMES) if lines else ""


def _ratios(rows: Sequence[Row], baseline: str) -> Iterator[str]:
    timed = [row for row in rows if baseline in row.times]
    if timed:
        yield f"### {baseline} over each"
        yield f"How many times as long {baseline} takes: above 1 the candidate is faster (99 % intervals)."
        yield _table(timed, lambda time: format_ratio(time.over[baseline]))


def _percentiles(time: StepTime) -> str:
    percentiles = " / ".join(map(significant, time.percentiles_us))
    return f"{percentiles}, {significant(time.tail, 2)}, {time.calls:,}"


def _bar_lines(row: Row) -> Iterator[list[str]]:
    for name, baseline, hidden_sizes, target in BARS:
        if row.case.hidden_size in hidden_sizes and {name, baseline} <= row.times.keys():
            yield [f"{baseline} over {name}", *target.cells(row.times[name].over[baseline])]
    if row.case.hidden_size == _TAIL_HIDDEN_SIZE and {BOUND, ONNX} <= row.times.keys():
        tail, most = row.times[BOUND].tail, MaxTarget(row.times[ONNX].tail)
        yield [f"99.9 over 50 % of {BOUND}", significant(tail), str(most), most.is_met((tail, tail, tail))]
