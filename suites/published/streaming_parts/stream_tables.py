"""Tables of single steps: times, ratios, percentiles, and the bars of `stream`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.suites.published.common.bars import MaxTarget, MinTarget, format_ratio
from pytest_ecornn.suites.published.streaming_parts.stream_calls import BFLOAT16, BOUND, MODULE, NAMES, ONNX, SHOWN, TORCH
from pytest_ecornn.suites.published.streaming_parts.stream_steps import BASELINES, Row, StepTime

_SMALL = (8, 32, 64, 128)
# How many times as long a baseline has to take as a candidate, of one layer and one sequence of these H.
BARS = (
    (BOUND, TORCH, _SMALL, MinTarget(20.0)),
    (BOUND, ONNX, _SMALL, MinTarget(2.5)),
    (BOUND, TORCH, (256,), MinTarget(2.5)),
    (BOUND, ONNX, (256,), MinTarget(1.0)),
    (BFLOAT16, ONNX, (512,), MinTarget(1.5)),
    (MODULE, TORCH, _SMALL, MinTarget(5.0)),
)
_TAIL_HIDDEN_SIZE = 64  # where bound's percentiles are to be no farther apart than ONNX Runtime's


def render(rows: Sequence[Row]) -> str:
    return document(
        [
            "## Steps",
            "One step a call on one thread, the state carried on, in float32. JAX has threads of its own. What is wrong after "
            "some carried steps has no time. us a step: medians of blocks of calls that take turns (99 % intervals).",
            _table(rows, lambda time: "{} [{}, {}]".format(*map(significant, time.time_us))),
            *(part for baseline in BASELINES for part in _ratios(rows, baseline)),
            "### Single calls",
            "us of calls that are clocked one by one: 50, 99 and 99.9 %, the last over the first, and the number of calls.",
            _table(rows, _percentiles),
            "\n".join(_reasons(rows)),
            "### Bars",
            _bars(rows),
        ]
    )


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


def _reasons(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for name, reason in row.reasons.items():
            if reason not in SHOWN:
                yield f"- {escape(row.label)}, {escape(name)}: {escape(reason)}"


def _bars(rows: Sequence[Row]) -> str:
    header = ("layer", "figure", "measured", "bar", "holds")
    lines = [[escape(row.label), *line] for row in rows if row.case.is_plain for line in _bar_lines(row)]
    return table(header, lines, header[2:3]) if lines else "None of these is measured."


def _bar_lines(row: Row) -> Iterator[list[str]]:
    for name, baseline, hidden_sizes, target in BARS:
        if row.case.hidden_size in hidden_sizes and {name, baseline} <= row.times.keys():
            yield [f"{baseline} over {name}", *target.cells(row.times[name].over[baseline])]
    if row.case.hidden_size == _TAIL_HIDDEN_SIZE and {BOUND, ONNX} <= row.times.keys():
        tail, most = row.times[BOUND].tail, MaxTarget(row.times[ONNX].tail)
        yield [f"99.9 over 50 % of {BOUND}", significant(tail), str(most), most.is_met((tail, tail, tail))]
