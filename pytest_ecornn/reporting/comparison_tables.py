"""The Markdown tables of timed rows: for each cell and mode a comparison that fits a page, and below it every figure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pytest_ecornn.reporting import formatting, standing
from pytest_ecornn.reporting.markdown_syntax import escape, table
from pytest_ecornn.rows import Against, Row, Timing

_DETAILS = (
    "Case", "Implementation", "Time [interval]", "Ratio [interval], verdict", "Worst error / limit", "Max relative error",
    "Tensors", "Share of floor", "GB/s", "GFLOP/s", "Peak memory", "Build", "Blocks x calls", "Notes",
)  # fmt: skip
_FIGURES = ("Max relative error", "Share of floor", "GB/s", "GFLOP/s", "Peak memory", "Build", "Blocks x calls")


def sections(rows: list[Row], unproven: Collection[standing.Key]) -> Iterator[str]:
    """Heading, comparison and details of each cell and mode."""
    timed = [row for row in rows if row.kind == "benchmark"]
    for cell, mode in dict.fromkeys((row.cell, row.mode) for row in timed):
        here = [row for row in timed if (row.cell, row.mode) == (cell, mode)]
        yield f"## {escape(cell)}, {escape(mode)}"
        shown = [row for row in here if row.status != "skipped"]
        if not shown:
            yield "Every implementation skipped every case: see [Skipped](#skipped)."
            continue
        yield caption(shown)
        yield comparison(here, shown, unproven)
        yield absent(here, shown)
        yield f"### Details of {escape(cell)}, {escape(mode)}"
        bases = {case: standing.baselines(row for row in shown if row.case == case) for case in standing.cases(shown)}
        lines = [details(row, bases[row.case], unproven) for row in standing.in_order(shown)]
        yield table(_DETAILS, lines, right=_FIGURES)


def caption(rows: list[Row]) -> str:
    """What a cell of the comparison holds."""
    names = standing.baselines(rows)
    if not names:
        return "Time of one call. Nothing here was compared with a baseline."
    ratio = f"its ratio to {escape(names[0])}'s time" if len(names) == 1 else "its ratio to the baseline's time"
    return f"Time of one call, then {ratio} with its interval (under 1 is faster) and the verdict. **Bold**: the fastest."


def comparison(rows: list[Row], shown: list[Row], unproven: Collection[standing.Key]) -> str:
    """A line a case, a column an implementation; implementations that skipped everything here get no column."""
    names = standing.implementations(shown)
    lines = []
    for case in standing.cases(shown):
        of_case = {row.implementation: row for row in rows if row.case == case}
        best = standing.fastest(of_case.values(), unproven)
        bases = standing.baselines(of_case.values())
        cells = [_compared(of_case.get(name), bases, best, unproven) for name in names]
        lines.append([escape(case), *cells])
    return table(["Case", *map(escape, names)], lines)


def _compared(row: Row | None, bases: list[str], best: Collection[standing.Key], unproven: Collection[standing.Key]) -> str:
    if row is None:
        return ""
    if row.timing is None or not standing.is_publishable(row, unproven):
        state = standing.status(row, unproven)
        return state if state != "passed" else "not timed"
    time = formatting.duration(row.timing.time_us)
    shown = f"**{time}**" if row.key in best else time
    if row.implementation in bases[:1]:
        return f"{shown}, baseline"
    one = standing.against(row, bases[0] if bases else None)
    if one is None:
        return shown
    of = f" x {escape(one.baseline)}" if len(bases) > 1 else ""
    return f"{shown}, {_interval(one)}{of} {escape(standing.verdict(row, one, unproven))}"


def _interval(one: Against) -> str:
    return formatting.ratio_interval(one.ratio, one.low, one.high)


def absent(rows: list[Row], shown: list[Row]) -> str:
    """Says who is missing from the comparison, so that no one takes it for the whole field."""
    present = {row.implementation for row in shown}
    names = [name for name in standing.implementations(rows) if name not in present]
    if not names:
        return ""
    return f"No column: {', '.join(map(escape, names))} skipped every case here, for the reasons under [Skipped](#skipped)."


def details(row: Row, bases: list[str], unproven: Collection[standing.Key]) -> list[str]:
    """Every figure of a row, as a line of the details."""
    state = standing.status(row, unproven)
    if row.timing is None or not standing.is_publishable(row, unproven):
        figures = ["not timed" if state == "passed" else state, "", *errors(row), *[""] * 6]
    else:
        timing = row.timing
        interval = formatting.duration_interval(timing.time_us, timing.low_us, timing.high_us)
        ratios = [f"{_interval(one)} x {escape(one.baseline)} {standing.verdict(row, one, unproven)}" for one in timing.against]
        if row.implementation in bases:
            ratios.insert(0, "baseline")
        figures = [interval, "; ".join(ratios), *errors(row), *_machine_figures(timing)]
    return [escape(row.case), escape(row.implementation), *figures, escape(row.notes, 160)]


def errors(row: Row) -> list[str]:
    """Worst error over its limit and whose, largest relative error, informative of all tensors."""
    worst, largest = standing.worst_error(row), standing.largest_relative_error(row)
    informative = sum(one.status != "uninformative" for one in row.tensors)
    return [
        f"{formatting.limit_share(worst.share)} ({escape(worst.tensor)})" if worst else "",
        formatting.relative_error(largest) if largest is not None else "",
        f"{informative} of {len(row.tensors)}" if row.tensors else "",
    ]


def _machine_figures(timing: Timing) -> list[str]:
    return [
        formatting.percent(timing.floor_share),
        formatting.significant(timing.gb_per_s),
        formatting.significant(timing.gflop_per_s),
        formatting.size(timing.peak_bytes) if timing.peak_bytes is not None else "",
        formatting.duration(timing.build_ms * 1e3),
        f"{len(timing.samples_us)} x {timing.calls_per_sample}",
    ]
