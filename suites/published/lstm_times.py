"""EcoRNN's times: an LSTM's forward pass and training step, as called and replayed from a CUDA graph, beside cuDNN's.

Source: EcoRNN, arXiv 1805.08899: up to 3x over the framework's default, up to 1.5x over cuDNN, at most 20 % slower than it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import exp, fsum, log

from pytest_ecornn import measurement
from pytest_ecornn.clocks import Clock, CudaClock, GraphClock
from pytest_ecornn.contract import MODES, Case
from pytest_ecornn.measurement import Arm, Pool, Timed
from pytest_ecornn.replay import GraphArm, graph_arms
from pytest_ecornn.reporting.formatting import ratio_interval, significant
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.statistics import MIN_PAIRS, Ratio, median_interval, paired_ratio
from pytest_ecornn.suites.published.optional import LATE
from pytest_ecornn.suites.published.verified import prepared, wrong
from pytest_ecornn.verification import expected

IMPLEMENTATIONS = ("sequential", "cudnn", "transposed_gpu", "row_major_gpu")
BASELINE, DEFAULT = "cudnn", "sequential"
SHAPES = ((2, 32, 650), (2, 32, 200), (1, 64, 512), (2, 20, 1500))  # layers, batch, hidden size; the costliest last
PRECISIONS = (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee"), ("float16", "ieee"))
WAYS = ("as called", "graph replay")
_STEPS = 35
_SECONDS = 1.0  # for the fewest rounds that an interval needs; slower calls get fewer


@dataclass(frozen=True)
class Cell:
    """What one implementation needs for one case, or the reason why there is no time; ratios over 1 mean that it is faster."""

    reason: str = ""
    time_us: tuple[float, float, float] | None = None  # median, low, high
    baseline_over_it: Ratio | None = None
    default_over_it: Ratio | None = None


@dataclass(frozen=True)
class Row:
    """One case; cells by way (WAYS) and implementation."""

    case: Case
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)


def cases() -> list[Case]:
    """Training steps and forward passes, shape by shape."""
    return [
        Case(cell="lstm", layers=layers, batch=batch, hidden_size=hidden, steps=_STEPS, dtype=dtype, precision=precision,
             mode=mode, device="cuda")
        for (layers, batch, hidden), (dtype, precision), mode in product(SHAPES, PRECISIONS, reversed(MODES))
    ]  # fmt: skip


def measure(deadline: float) -> Iterator[Row]:
    """A row for each case; those that begin after `deadline` (of time.monotonic) have the reason in place of times."""
    for case in cases():
        if time.monotonic() < deadline:
            yield _row(case)
        else:
            late = {name: Cell(LATE) for name in IMPLEMENTATIONS}
            yield Row(case, dict.fromkeys(WAYS, late))


def _row(case: Case) -> Row:
    """By the harness's own clocks and arms, as a row of `pytest --ecornn-bench` is measured."""
    pool = Pool(case)
    called = {name: one if isinstance(one, str) else Arm(one, pool) for name, one in prepared(case, IMPLEMENTATIONS).items()}
    times = [_timed(called, CudaClock(case.device))]
    replayed = {name: one if isinstance(one, str) else _captured(one) for name, one in called.items()}
    times.append(_timed({name: _checked(one) for name, one in replayed.items()}, GraphClock(case.device)))
    return Row(case, dict(zip(WAYS, times, strict=True)))


def _captured(arm: Arm) -> GraphArm | str:
    graphs, missing = graph_arms([arm])
    return graphs[0] if graphs else missing[0]


def _checked(arm: GraphArm | str) -> GraphArm | str:
    """The arm where what its first graph computes of the case's own contents, which it was not captured on, is right."""
    if isinstance(arm, str):
        return arm
    graph, wanted = arm.graphs[0], expected(arm.candidate.case)
    graph.refresh(wanted.problem)
    graph.replay()
    comparisons = wanted.compare(graph.call.named(*graph.result), arm.candidate.implementation.declared)
    return wrong(arm.candidate, comparisons) or arm


def _timed(arms: Mapping[str, Timed | str], clock: Clock) -> dict[str, Cell]:
    timed = {name: arm for name, arm in arms.items() if not isinstance(arm, str)}
    if timed:
        measurement.measure(list(timed.values()), clock, _SECONDS, lambda: True)
    samples_us = {name: arm.samples_us for name, arm in timed.items()}
    return cells(samples_us, {name: reason for name, reason in arms.items() if isinstance(reason, str)})


def cells(samples_us: Mapping[str, Sequence[float]], reasons: Mapping[str, str]) -> dict[str, Cell]:
    """From each implementation's samples, one a round, or the reason why it has none."""
    return {name: _cell(name, samples_us) if name in samples_us else Cell(reasons[name]) for name in IMPLEMENTATIONS}


def _cell(name: str, samples_us: Mapping[str, Sequence[float]]) -> Cell:
    own = samples_us[name]
    over = [paired_ratio(samples_us[other], own) if other in samples_us else None for other in (BASELINE, DEFAULT)]
    return Cell("", median_interval(own), *over)


def geometric_mean(values: Sequence[float]) -> float:
    """Raises ValueError for none, and for a value not above 0."""
    if not values or min(values) <= 0:
        raise ValueError(f"expected values above 0, got {list(values)}")
    return exp(fsum(map(log, values)) / len(values))


def render(rows: Sequence[Row], paper_column: str) -> str:
    parts = [
        "## LSTM, forward pass and training step",
        f"{_STEPS} steps. Each cell: time in us, and {BASELINE}'s time to it with its interval (99 %, {MIN_PAIRS} rounds of "
        f"alternating blocks, fewer where calls are slow): over 1 it is faster than {BASELINE}. A training step is the forward "
        "pass and the gradients of all leaves. Each call has contents of its own; replays take turns over several graphs. What "
        "fails its comparison with the float64 reference, as called or replayed, is wrong and has no time.",
    ]
    for mode, way in product(reversed(MODES), WAYS):
        chosen = [row for row in rows if row.case.mode == mode]
        if chosen:
            lines = [[_label(row.case), *(_text(row, way, name) for name in IMPLEMENTATIONS), "-"] for row in chosen]
            header = ("shape", *IMPLEMENTATIONS, paper_column)
            parts += [f"### {mode.capitalize()}, {way}", table(header, [*lines, *_summary(chosen, way)], IMPLEMENTATIONS)]
    return document(parts)


def _label(case: Case) -> str:
    precision = case.precision if case.precision != "ieee" else case.dtype
    return f"{case.layers} x {case.hidden_size}, B {case.batch}, {precision}"


def _text(row: Row, way: str, name: str) -> str:
    cell = row.cells[way][name]
    if cell.time_us is None:
        return "-" if (name, row.case.precision) == (DEFAULT, "tf32") else escape(cell.reason)
    over = cell.baseline_over_it
    ratio = "" if over is None or name == BASELINE else f", {ratio_interval(over.ratio, over.low, over.high)}"
    return significant(cell.time_us[0], 4) + ratio


def _summary(rows: Sequence[Row], way: str) -> list[list[str]]:
    """A line for each figure over all rows: for each implementation, and the paper's."""
    of_all = [[row.cells[way][name] for row in rows] for name in IMPLEMENTATIONS]
    baseline = [[cell.baseline_over_it.ratio for cell in of_one if cell.baseline_over_it] for of_one in of_all]
    default = [[cell.default_over_it.ratio for cell in of_one if cell.default_over_it] for of_one in of_all]
    wanted: list[tuple[str, list[list[float]], Callable[[Sequence[float]], float], str]] = [
        (f"{BASELINE}'s time to it, geometric mean", baseline, geometric_mean, "-"),
        ("the same, highest", baseline, max, "up to 1.5"),
        ("the same, lowest", baseline, min, "never more than 20 % slower: 0.83"),
        (f"{DEFAULT}'s time to it, geometric mean", default, geometric_mean, "-"),
        ("the same, highest", default, max, "up to 3"),
    ]
    return [
        [f"**{label}**", *(significant(of(values)) if values else "-" for values in columns), paper]
        for label, columns, of, paper in wanted
    ]
