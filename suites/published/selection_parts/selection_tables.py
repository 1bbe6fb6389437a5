"""The report's tables: a line a problem with each backend's time, the choice, its cost and its regret, and sums of each set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import geometric_mean
from typing import Any
from unittest.mock import patch

import torch

from pytest_ecornn.autotune import Decision, selection, store
from pytest_ecornn.measurement.alternating import Calls, Replay, sample
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.statistics import Ratio, median_interval, paired_ratio
from pytest_ecornn.suites.published.common.bars import Times, format_ratio
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED
from pytest_ecornn.suites.published.selection_parts import problems
from pytest_ecornn.suites.published.selection_parts.problems import AUTO, MODES, SelectionProblem
from pytest_ecornn.system.error_line import first_line

_BLOCK_US = 2500.0
ROUNDS = 9
_TIMINGS = {"called": "as called", "replayed": "graph replay"}
_BACKEND_NAMES = {"torch": "torch.nn", "sequential": "loop"}  # in tables, where they are others
_TITLES = {
    "ecornn": "EcoRNN's language models",
    "deepbench": "DeepBench's problems",
    "drawn": "Drawn problems",
    "scans": "Drawn scans",
}


@dataclass(frozen=True)
class Column:
    """Times as called or replayed, in us: (median, low, high) by backend; the choice, and ratios that are over 1 where it wins.

    over_baseline: the baseline's time over auto's. over_best: the fastest backend's time over auto's; under 1 is regret.
    """

    choice: str
    times_us: dict[str, Times]
    over_baseline: Ratio
    over_best: Ratio
    best: str


@dataclass(frozen=True)
class SelectionRow:
    """One problem. replayed: None where there are no CUDA graphs. refusals: why backends have no time.

    decision_ms: of timing alone. compile_ms: of first calls. first_call_ms: of the whole first call. notes: auto's.
    peak_over_winner: peak memory of the first call over that of a later one.
    """

    problem: SelectionProblem
    called: Column | None = None
    replayed: Column | None = None
    refusals: dict[str, str] = field(default_factory=dict)
    decision_ms: float = 0.0
    compile_ms: float = 0.0
    first_call_ms: float = 0.0
    peak_over_winner: float = 0.0
    notes: str = ""

    @property
    def label(self) -> str:
        return f"{self.problem}, {self.problem.mode}"


def run_once(problem: SelectionProblem, device: torch.device) -> None:
    """Runs every backend once, so that its kernels are compiled and stored."""
    with problems.precision_set(problem), patch.object(store, "read", return_value=None), patch.object(store, "write"):
        for backend in problems.backends(problem, device):
            try:
                problems.make_call(problem, problems.make_module(problem, backend, device), device)()
            except (ValueError, torch.OutOfMemoryError):
                continue
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(problem: SelectionProblem, device: torch.device, confidence: float, rounds: int = ROUNDS) -> SelectionRow:
    """The row of a problem, whose decision is made anew."""
    selection.forget()
    with problems.precision_set(problem), patch.object(store, "read", return_value=None), patch.object(store, "write"):
        auto = problems.make_module(problem, AUTO, device)
        call = problems.make_call(problem, auto, device)
        first_call_ms, first_peak = _first_call(call, device)
        _, later_peak = _first_call(call, device)
        notes: str = auto.notes()  # type: ignore[operator]
        decision: Decision | None = next(iter(selection.decisions().values()), None)
        calls: dict[str, Callable[[], Any]] = {}
        refusals: dict[str, str] = {}
        for backend in problems.backends(problem, device):
            try:
                calls[backend] = problems.make_call(problem, problems.make_module(problem, backend, device), device)
                calls[backend]()
            except (ValueError, torch.OutOfMemoryError) as error:
                calls.pop(backend, None)
                refusals[backend] = first_line(error) or type(error).__name__
        calls[AUTO] = call
        ran = notes.partition(";")[0].partition(":")[0]
        called = _column(calls, device, confidence, rounds, decision.called if decision else ran)
        replayed = None
        if device.type == "cuda":
            graphs = {name: Replay(call) for name, call in calls.items()}
            replayed = _column(graphs, device, confidence, rounds, decision.device if decision else ran)
    return SelectionRow(
        problem, called, replayed, refusals, decision.probe_ms if decision else 0.0, decision.compile_ms if decision else 0.0,
        first_call_ms, first_peak / max(1, later_peak), notes,
    )  # fmt: skip


def _first_call(call: Callable[[], Any], device: torch.device) -> tuple[float, int]:
    """Its ms, and the peak of memory in bytes that torch had given out on a CUDA device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    call()
    if device.type != "cuda":
        return (time.perf_counter() - start) * 1e3, 0
    torch.cuda.synchronize(device)
    return (time.perf_counter() - start) * 1e3, torch.cuda.max_memory_allocated(device)


def _column(calls: Calls, device: torch.device, confidence: float, rounds: int, choice: str) -> Column:
    samples = sample(calls, device, rounds, _BLOCK_US)
    times_us = {name: median_interval(of_name) for name, of_name in samples.items()}
    others = [name for name in calls if name != AUTO]
    best = min(others, key=lambda name: times_us[name][0])
    over = {name: paired_ratio(samples[name], samples[AUTO], confidence) for name in (others[0], best)}
    return Column(_BACKEND_NAMES.get(choice, choice), times_us, over[others[0]], over[best], best)


def render(measured: Sequence[SelectionRow]) -> str:
    """The rows as Markdown."""
    rows = [row for row in measured if row.called is not None]
    late = [row for row in measured if row.refusals == {"all": NOT_REACHED}]
    failed = [row for row in measured if row.called is None and row not in late]
    parts = [
        summary(rows),
        "A ratio over 1 means that auto is faster. Baseline: torch.nn for LSTM, GRU and RNN, the scan for minGRU and minLSTM. "
        "The regret is auto's time over the fastest backend's, measured after the decision, apart from it. What looks slow is "
        "measured once more, by four times as many rounds. Brackets: the ratios to the baseline of a set hold at once with "
        "99 %, and so do those to the best.",
        *(_section(name, [row for row in rows if row.problem.set == name]) for name in _TITLES),
        *(f"Not measured: {escape(f'{row.label}: {row.refusals}')}" for row in failed),
        f"{len(late)} problems: {NOT_REACHED}." if late else "",
    ]
    return document(parts)


def summary(rows: Sequence[SelectionRow]) -> str:
    """A line for each set, mode and way of timing."""
    header = [
        "problems", "mode", "timing", "number", "over baseline, geometric mean", "lowest", "surely below 0.97",
        "over best, mean", "0.95 or more of the best", "largest regret",
    ]  # fmt: skip
    lines = []
    labels = dict.fromkeys(_group(row) for name in _TITLES for row in rows if row.problem.set == name)
    for label, mode in product(labels, MODES):
        group = [row for row in rows if (_group(row), row.problem.mode) == (label, mode)]
        lines += [_summary_line(label, mode, timing, group) for timing in _TIMINGS if group]
    costs = _costs(rows)
    return document([table(header, filter(None, lines), header[3:]).strip(), costs]).strip()


def _group(row: SelectionRow) -> str:
    return row.problem.set + (f", {row.problem.precision}" if row.problem.set == "deepbench" else "")


def _summary_line(name: str, mode: str, timing: str, rows: Sequence[SelectionRow]) -> list[str]:
    columns: list[Column] = [column for row in rows if (column := getattr(row, timing)) is not None]
    if not columns:
        return []
    ratios, of_best = ([getattr(column, kind).ratio for column in columns] for kind in ("over_baseline", "over_best"))
    below = sum(column.over_baseline.high < 0.97 for column in columns)
    near = sum(ratio >= 0.95 for ratio in of_best)
    return [
        name, mode, _TIMINGS[timing], str(len(columns)), f"{geometric_mean(ratios):.2f}", f"{min(ratios):.2f}", str(below),
        f"{geometric_mean(of_best):.3f}", f"{near} of {len(columns)}", f"{1 / min(of_best):.2f}",
    ]  # fmt: skip


def _costs(rows: Sequence[SelectionRow]) -> str:
    timed = sorted(row.decision_ms for row in rows if row.decision_ms)
    if not timed:
        return "No decision was timed: one backend alone runs each problem."
    over = [row for row in rows if row.called and row.decision_ms > max(50.0, 6 * row.called.times_us[AUTO][0] / 1e3)]
    peaks = sorted(row.peak_over_winner for row in rows if row.decision_ms and row.peak_over_winner)
    text = (
        f"{len(timed)} decisions were timed: median {timed[len(timed) // 2]:.1f} ms, most {timed[-1]:.1f} ms beside first "
        f"calls; {len(over)} took more than 50 ms and six calls of the winner."
    )
    if peaks:
        text += f" Peak memory of the first call over a later one's: median {peaks[len(peaks) // 2]:.2f}, most {peaks[-1]:.2f}."
    return text


def _section(name: str, rows: Sequence[SelectionRow]) -> str:
    if not rows:
        return ""
    backends = list(dict.fromkeys(backend for row in rows if row.called for backend in row.called.times_us))
    figures = (*(f"{backend}, us" for backend in backends), "chosen", "baseline over auto", "best over auto", "cost, ms")
    parts = [f"## {_TITLES[name]}"]
    for mode in MODES:
        if of_mode := [row for row in rows if row.problem.mode == mode]:
            lines = [line for row in of_mode for line in _lines(row, backends)]
            parts += [f"### {mode.capitalize()}", table(("problem", "timing", *figures), lines, figures)]
    return document(parts).strip()


def _lines(row: SelectionRow, backends: Iterable[str]) -> Iterator[list[str]]:
    cost = f"{row.decision_ms:.0f} + {row.compile_ms:.0f}" if row.decision_ms else "-"
    for column, timing in ((row.called, _TIMINGS["called"]), (row.replayed, _TIMINGS["replayed"])):
        if column:
            times = [significant(column.times_us[name][0]) if name in column.times_us else "-" for name in backends]
            ratios = format_ratio(column.over_baseline), format_ratio(column.over_best)
            yield [escape(row.problem), timing, *times, column.choice, *ratios, cost]
