"""The report's tables: a line a problem with each backend's time, the choice, its cost and its regret, and sums of each set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.suites.published.common.bars import format_ratio
from pytest_ecornn.suites.published.common.ratios import geometric_mean
from pytest_ecornn.suites.published.selection_parts.modules import AUTO
from pytest_ecornn.suites.published.selection_parts.problems import MODES
from pytest_ecornn.suites.published.selection_parts.selection_times import Column, SelectionRow
from pytest_ecornn.system import machine

_WAYS = {"called": "as called", "replayed": "graph replay"}
_TITLES = {
    "ecornn": "EcoRNN's language models",
    "deepbench": "DeepBench's problems",
    "drawn": "Drawn problems",
    "scans": "Drawn scans",
}


def render(report: Any) -> str:
    """The report as Markdown."""
    rows: list[SelectionRow] = [row for row in report.rows if row.called is not None]
    failed = [row for row in report.rows if row.called is None]
    parts = [
        "# What auto chooses on this machine",
        escape(f"{_machine(report.machine)}; seed {report.seed}; made in {report.seconds:.0f} s."),
        summary(rows),
        "A ratio over 1 means that auto is faster. Baseline: torch.nn for LSTM, GRU and RNN, the scan for minGRU and minLSTM. "
        "The regret is auto's time over the fastest backend's, measured after the decision, apart from it. What looks slow is "
        "measured once more, by four times as many rounds. Brackets: the ratios to the baseline of a set hold at once with "
        "99 %, and so do those to the best.",
        *(_section(name, [row for row in rows if row.problem.set == name]) for name in _TITLES),
        *(f"Not measured: {escape(f'{row.problem} {row.problem.mode}: {row.refusals}')}" for row in failed),
    ]
    return document(parts)


def _machine(found: dict[str, Any]) -> str:
    if found.get("gpu"):
        return machine.gpu_summary(found)
    return f"{found['cpu']}, {found['cores']} cores; torch {found['packages']['torch']}; commit {found['commit']}"


def summary(rows: Sequence[SelectionRow]) -> str:
    """A line for each set, mode and way of timing."""
    header = [
        "problems", "mode", "timing", "number", "over baseline, geometric mean", "lowest", "surely below 0.97",
        "over best, mean", "0.95 or more of the best", "largest regret",
    ]  # fmt: skip
    lines = []
    for name in _TITLES:
        for precision in dict.fromkeys(_group(row) for row in rows if row.problem.set == name):
            for mode in MODES:
                group = [
                    row for row in rows if row.problem.set == name and row.problem.mode == mode and _group(row) == precision
                ]
                lines += [_summary_line(f"{name}{precision}", mode, way, group) for way in _WAYS if group]
    costs = _costs(rows)
    return document([table(header, filter(None, lines), header[3:]).strip(), costs]).strip()


def _group(row: SelectionRow) -> str:
    return f", {row.problem.precision}" if row.problem.set == "deepbench" else ""


def _summary_line(name: str, mode: str, way: str, rows: Sequence[SelectionRow]) -> list[str]:
    columns: list[Column] = [column for row in rows if (column := getattr(row, way)) is not None]
    if not columns:
        return []
    ratios, of_best = ([getattr(one, kind).ratio for one in columns] for kind in ("over_baseline", "over_best"))
    below = sum(one.over_baseline.high < 0.97 for one in columns)
    near = sum(value >= 0.95 for value in of_best)
    return [
        name, mode, _WAYS[way], str(len(columns)), f"{geometric_mean(ratios):.2f}", f"{min(ratios):.2f}", str(below),
        f"{geometric_mean(of_best):.3f}", f"{near} of {len(columns)}", f"{1 / min(of_best):.2f}",
    ]  # fmt: skip


def _costs(rows: Sequence[SelectionRow]) -> str:
    timed = sorted(row.decision_ms for row in rows if row.decision_ms)
    if not timed:
        return "No decision was timed: one backend alone runs each problem."
    over = [row for row in rows if row.decision_ms > budget_ms(row)]
    peaks = sorted(row.peak_over_winner for row in rows if row.decision_ms and row.peak_over_winner)
    text = (
        f"{len(timed)} decisions were timed: median {timed[len(timed) // 2]:.1f} ms, most {timed[-1]:.1f} ms beside first "
        f"calls; {len(over)} took more than 50 ms and six calls of the winner."
    )
    if peaks:
        text += f" Peak memory of the first call over a later one's: median {peaks[len(peaks) // 2]:.2f}, most {peaks[-1]:.2f}."
    return text


def budget_ms(row: SelectionRow) -> float:
    """50 ms, or six calls of the winner if they take longer."""
    return max(50.0, 6 * row.called.times_us[AUTO][0] / 1e3) if row.called else 50.0


def _section(name: str, rows: Sequence[SelectionRow]) -> str:
    if not rows:
        return ""
    backends = list(dict.fromkeys(one for row in rows if row.called for one in row.called.times_us))
    header = [
        "problem",
        "timing",
        *(f"{one}, us" for one in backends),
        "chosen",
        "baseline over auto",
        "best over auto",
        "cost, ms",
    ]
    parts = [f"## {_TITLES[name]}"]
    for mode in MODES:
        of_mode = [row for row in rows if row.problem.mode == mode]
        if of_mode:
            lines = [_line(row, way, backends) for row in of_mode for way in _WAYS if getattr(row, way) is not None]
            parts += [f"### {mode.capitalize()}", table(header, lines, header[2:])]
    return document(parts).strip()


def _line(row: SelectionRow, way: str, backends: Iterable[str]) -> list[str]:
    column: Column = getattr(row, way)
    times = [significant(column.times_us[one][0]) if one in column.times_us else "-" for one in backends]
    cost = f"{row.decision_ms:.0f} + {row.compile_ms:.0f}" if row.decision_ms else "-"
    ratios = format_ratio(column.over_baseline), format_ratio(column.over_best)
    return [escape(row.problem), _WAYS[way], *times, column.choice, *ratios, cost]


def in_a_line(row: SelectionRow) -> str:
    """A row for the terminal."""
    if row.called is None:
        return str(row.refusals)
    parts = []
    for way in _WAYS:
        if column := getattr(row, way):
            parts.append(f"{column.choice} {column.over_baseline.ratio:.2f} ({column.over_best.ratio:.2f} of the best)")
    return f"{'; '.join(parts)}; {row.decision_ms:.0f} + {row.compile_ms:.0f} ms"
