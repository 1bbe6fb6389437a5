"""EcoRNN's times: an LSTM's forward pass and training step, as called and replayed from a CUDA graph, beside cuDNN's.

Source: EcoRNN, arXiv 1805.08899: up to 3x over the framework's default, up to 1.5x over cuDNN, at most 20 % slower than it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from pytest_ecornn.contract import MODES, Case
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.statistics import MIN_PAIRS
from pytest_ecornn.suites.published.common.bars import format_ratio, geometric_mean
from pytest_ecornn.suites.published.common.case_times import TIMING_MODES, Row, TimedComparison, precision_of

IMPLEMENTATIONS = ("sequential", "cudnn", "transposed_gpu", "row_major_gpu")
BASELINE, DEFAULT = "cudnn", "sequential"
SHAPES = ((2, 32, 650), (2, 32, 200), (1, 64, 512), (2, 20, 1500))  # layers, batch, hidden size; the costliest last
PRECISIONS = (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee"), ("float16", "ieee"))
CONTEST = TimedComparison(IMPLEMENTATIONS, (BASELINE, DEFAULT))
_STEPS = 35


def cases() -> list[Case]:
    """Training steps and forward passes, shape by shape."""
    return [
        Case(cell="lstm", layers=layers, batch=batch, hidden_size=hidden, steps=_STEPS, dtype=dtype, precision=precision,
             mode=mode, device="cuda")
        for (layers, batch, hidden), (dtype, precision), mode in product(SHAPES, PRECISIONS, reversed(MODES))
    ]  # fmt: skip


def measure(deadline: float) -> Iterator[Row]:
    """A row for each case; those that begin after `deadline` (of time.monotonic) have the reason in place of times."""
    return CONTEST.rows(cases(), deadline)


def render(rows: Sequence[Row], paper_column: str) -> str:
    parts = [
        "## LSTM, forward pass and training step",
        f"{_STEPS} steps. Each cell: time in us, and {BASELINE}'s time to it with its interval (99 %, {MIN_PAIRS} rounds of "
        f"alternating blocks, fewer where calls are slow): over 1 it is faster than {BASELINE}. A training step is the forward "
        "pass and the gradients of all leaves. Each call has contents of its own; replays take turns over several graphs. What "
        "fails its comparison with the float64 reference, as called or replayed, is wrong and has no time.",
    ]
    for mode, way in product(reversed(MODES), TIMING_MODES):
        chosen = [row for row in rows if row.case.mode == mode]
        if chosen:
            lines = [[_label(row.case), *(_text(row, way, name) for name in IMPLEMENTATIONS), "-"] for row in chosen]
            header = ("shape", *IMPLEMENTATIONS, paper_column)
            parts += [f"### {mode.capitalize()}, {way}", table(header, [*lines, *_summary(chosen, way)], IMPLEMENTATIONS)]
    return document(parts)


def _label(case: Case) -> str:
    return f"{case.layers} x {case.hidden_size}, B {case.batch}, {precision_of(case)}"


def _text(row: Row, way: str, name: str) -> str:
    cell = row.cells[way][name]
    if cell.time_us is None:
        return "-" if (name, row.case.precision) == (DEFAULT, "tf32") else escape(cell.reason)
    over = cell.over_it.get(BASELINE)
    ratio = "" if over is None or name == BASELINE else f", {format_ratio(over)}"
    return significant(cell.time_us[0], 4) + ratio


def _summary(rows: Sequence[Row], way: str) -> list[list[str]]:
    """A line for each figure over all rows: for each implementation, and the paper's."""
    of_all = [[row.cells[way][name] for row in rows] for name in IMPLEMENTATIONS]
    baseline = [[cell.over_it[BASELINE].ratio for cell in of_one if BASELINE in cell.over_it] for of_one in of_all]
    default = [[cell.over_it[DEFAULT].ratio for cell in of_one if DEFAULT in cell.over_it] for of_one in of_all]
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
