"""The Markdown tables of timed rows: for each cell and mode a comparison that fits a page, and below it every figure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from pytest_ecornn.measurement.noise.bounds import describe
from pytest_ecornn.reporting import answer, standing
from pytest_ecornn.reporting.markdown_syntax import escape, table
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import BaselineRatio, Row, Timing

_DETAILS = (
    "Case", "Implementation", "Time [interval]", "Ratio [interval], verdict", "Worst error / limit", "Max relative error",
    "Tensors", "Share of floor", "GB/s", "GFLOP/s", "Peak memory", "Build", "Blocks x calls",
)  # fmt: skip
_GPU_DETAILS = (
    "Device only [interval]", "Device-only ratio [interval], verdict", "Device-only share of floor", "Host time of a call",
    "SM clock, power, temperature",
)  # fmt: skip
_FIGURES = (
    "Max relative error", "Share of floor", "GB/s", "GFLOP/s", "Peak memory", "Build", "Blocks x calls",
    "Device-only share of floor", "Host time of a call",
)  # fmt: skip


def sections(rows: list[Row], unproven: Collection[standing.Key]) -> Iterator[str]:
    """Heading, comparison and details of each cell and mode."""
    timed_rows = [row for row in rows if row.kind == "benchmark"]
    for cell, mode in dict.fromkeys((row.cell, row.mode) for row in timed_rows):
        here = [row for row in timed_rows if (row.cell, row.mode) == (cell, mode)]
        yield f"## {escape(cell)}, {escape(mode)}"
        shown = [row for row in here if row.status != "skipped"]
        if not shown:
            yield "Every implementation skipped every case: see [Skipped](#skipped)."
            continue
        yield caption(shown)
        yield comparison(here, shown, unproven)
        yield missing_implementations(here, shown)
        yield f"### Details of {escape(cell)}, {escape(mode)}"
        yield details(shown, unproven)


def caption(rows: list[Row]) -> str:
    """Caption of the comparison: explains what a cell holds."""
    names = standing.baselines(rows)
    both = " Device only: replayed as a CUDA graph, without the host." if "replay" in standing.columns(rows) else ""
    if not names:
        return f"Time of one call. Nothing here was compared with a baseline.{both}"
    ratio = f"its ratio to {escape(names[0])}'s time" if len(names) == 1 else "its ratio to the baseline's time"
    reading = f"Time of one call, then {ratio} with its interval (under 1 is faster) and the verdict."
    return f"{reading} **Bold**: certainly the fastest.{both}"


def comparison(rows: list[Row], shown: list[Row], unproven: Collection[standing.Key]) -> str:
    """A line a case, a column an implementation, on a GPU two; those that skipped everything here get none."""
    columns = [
        (name, column)
        for name in standing.implementations(shown)
        for column in standing.columns(row for row in shown if row.implementation == name)
    ]
    lines, by_case = [], standing.by_case(rows)
    for case in standing.cases(shown):
        of_case = {row.implementation: row for row in by_case[case]}
        bold = {column: answer.of_case([*of_case.values()], unproven, column).bold for column in standing.COLUMNS}
        bases = standing.baselines(of_case.values())
        cells = [_compared(of_case.get(name), column, bases, bold[column], unproven) for name, column in columns]
        lines.append([escape(case), *cells])
    return table(["Case", *(_heading(name, column) for name, column in columns)], lines)


def _heading(name: str, column: str) -> str:
    return escape(name) if column == "timing" else f"{escape(name)}, {standing.COLUMNS[column]}"


def _compared(row: Row | None, column: str, bases: list[str], bold: str, unproven: Collection[standing.Key]) -> str:
    if row is None:
        return ""
    timing = standing.is_publishable(row, unproven, column)
    if timing is None:
        state = standing.status(row, unproven)
        return state if state != "passed" else "not timed"
    time = formatting.duration(timing.time_us)
    shown = f"**{time}**" if row.implementation == bold else time
    if row.implementation in bases[:1]:
        return f"{shown}, baseline"
    one = standing.ratio_to(row, bases[0] if bases else None, column)
    if one is None:
        return shown
    of = f" x {escape(one.baseline)}" if len(bases) > 1 else ""
    return f"{shown}, {_interval(one)}{of} {escape(standing.verdict(row, one, unproven))}"


def _interval(one: BaselineRatio) -> str:
    return formatting.ratio_interval(one.ratio, one.low, one.high)


def missing_implementations(rows: list[Row], shown: list[Row]) -> str:
    """Says who is missing from the comparison, so that no one takes it for the whole field."""
    present = {row.implementation for row in shown}
    names = [name for name in standing.implementations(rows) if name not in present]
    if not names:
        return ""
    return f"No column: {', '.join(map(escape, names))} skipped every case here, for the reasons under [Skipped](#skipped)."


def details(rows: list[Row], unproven: Collection[standing.Key]) -> str:
    """Every figure of every row, a line each; those of a GPU only where there are any."""
    bases = {case: standing.baselines(of_case) for case, of_case in standing.by_case(rows).items()}
    is_gpu = any(row.timing is not None and row.timing.host_us is not None for row in rows)
    lines = []
    for row in standing.in_order(rows):
        gpu = _gpu_figures(row, bases[row.case], unproven) if is_gpu else []
        line = [escape(row.case), escape(row.implementation), *_row_figures(row, bases[row.case], unproven), *gpu]
        lines.append([*line, _notes(row)])
    header = [*_DETAILS, *(_GPU_DETAILS if is_gpu else ()), "Notes"]
    return table(header, lines, right=_FIGURES)


def _notes(row: Row) -> str:
    """The implementation's own, what disturbed each column, and what else makes its verdicts unclear."""
    columns = {name: timing for column, name in standing.COLUMNS.items() if (timing := standing.timing(row, column))}
    reasons = [(name, [describe(timing), *(one.doubt for one in timing.against)]) for name, timing in columns.items()]
    said = [f"{name}: {words}" if row.replay else words for name, each in reasons for words in each if words]
    return "; ".join(filter(None, [escape(row.notes, 160), escape(row.beside), *map(escape, said)]))


def _row_figures(row: Row, bases: list[str], unproven: Collection[standing.Key]) -> list[str]:
    timing = standing.is_publishable(row, unproven)
    if timing is None:
        state = standing.status(row, unproven)
        return ["not timed" if state == "passed" else state, "", *errors(row), *[""] * 6]
    return [*_times(row, "timing", timing, bases, unproven), *errors(row), *_machine_figures(timing)]


def _gpu_figures(row: Row, bases: list[str], unproven: Collection[standing.Key]) -> list[str]:
    timing, replay = standing.is_publishable(row, unproven), standing.is_publishable(row, unproven, "replay")
    device_only = ["not timed" if timing else "", "", ""]
    if replay is not None:
        device_only = [*_times(row, "replay", replay, bases, unproven), formatting.percent(replay.floor_share)]
    if timing is None:
        return [*device_only, "", ""]
    host = formatting.duration(timing.host_us) if timing.host_us is not None else ""
    return [*device_only, host, sensors_text(timing.sensors)]


def _times(row: Row, column: str, timing: Timing, bases: list[str], unproven: Collection[standing.Key]) -> list[str]:
    """Time with its interval, and the ratio to each baseline."""
    interval = formatting.duration_interval(timing.time_us, timing.low_us, timing.high_us)
    ratios = [f"{_interval(one)} x {escape(one.baseline)} {standing.verdict(row, one, unproven)}" for one in timing.against]
    if row.implementation in bases:
        ratios.insert(0, "baseline")
    return [interval, "; ".join(ratios)]


def sensors_text(summary: dict[str, Any] | None, escaped: Callable[[str], str] = escape) -> str:
    """Medians with the least and the most, and why the clocks were held down, which `escaped` makes fit for its place."""
    if summary is None:
        return ""
    unit_names = {"sm_mhz": "MHz", "power_w": "W", "temperature_c": "°C"}
    ranges = [(summary[name], unit) for name, unit in unit_names.items() if name in summary]
    found = [f"{middle:.0f} [{low:.0f}, {high:.0f}] {unit}" for (low, middle, high), unit in ranges]
    return ", ".join([*found, *map(escaped, summary.get("throttled", []))])


def errors(row: Row) -> list[str]:
    """Worst error over its limit and whose, largest relative error, informative of all tensors."""
    worst_error, largest = standing.worst_error(row), standing.largest_relative_error(row)
    informative = sum(one.status != "uninformative" for one in row.tensors)
    return [
        f"{formatting.limit_fraction(worst_error.share)} ({escape(worst_error.tensor)})" if worst_error else "",
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
