"""The Markdown tables of timed rows: for each cell and mode a comparison that fits a page, and below it every figure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from pytest_ecornn.measurement.noise.bounds import describe
from pytest_ecornn.reporting import answer, report_columns, standing
from pytest_ecornn.reporting.markdown_syntax import escape, table
from pytest_ecornn.reporting.report_columns import Entry, ReportColumn
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import BaselineRatio, Row, Timing

_TIMES = ("Time [interval]", "Ratio [interval], verdict")
_DEVICE_ONLY_TIMES = ("Device only [interval]", "Device-only ratio [interval], verdict")


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
    columns = report_columns.shown(report_columns.DETAILS, [Entry(row, row.timing) for row in rows])
    lines = []
    for row in standing.in_order(rows):
        gpu = _gpu_figures(row, bases[row.case], unproven) if is_gpu else []
        line = [escape(row.case), escape(row.implementation), *_row_figures(row, bases[row.case], columns, unproven), *gpu]
        lines.append([*line, _notes(row)])
    header, right = _header(columns, is_gpu)
    return table(header, lines, right=right)


def _header(details: Iterable[ReportColumn], is_gpu: bool) -> tuple[list[str], list[str]]:
    """The headings, and those of columns that are aligned to the right."""
    columns = [*report_columns.ERRORS, *details]
    header = ["Case", "Implementation", *_TIMES, *headings(columns)]
    right = [column.heading for column in columns if column.is_aligned_right]
    if is_gpu:
        as_called = headings(report_columns.DEVICE_ONLY_DETAILS)
        device_only = [f"Device-only {heading[0].lower()}{heading[1:]}" for heading in as_called]
        header += [*_DEVICE_ONLY_TIMES, *device_only, *headings(report_columns.GPU_DETAILS)]
        right += [*device_only, *(column.heading for column in report_columns.GPU_DETAILS if column.is_aligned_right)]
    return [*header, "Notes"], right


def headings(columns: Iterable[ReportColumn]) -> list[str]:
    return [column.heading for column in columns]


def _notes(row: Row) -> str:
    """The implementation's own, what others took of the machine, and a baseline's other times where a verdict holds."""
    columns = {name: timing for column, name in standing.COLUMNS.items() if (timing := standing.timing(row, column))}
    disturbed = [f"{name}: {words}" if row.replay else words for name, one in columns.items() if (words := describe(one))]
    ratios = [ratio for timing in columns.values() for ratio in timing.against]
    doubts = dict.fromkeys(ratio.doubt for ratio in ratios if ratio.verdict != "unclear")
    return "; ".join(filter(None, [escape(row.notes, 160), escape(row.beside), *map(escape, (*disturbed, *doubts))]))


def _row_figures(row: Row, bases: list[str], columns: Iterable[ReportColumn], unproven: Collection[standing.Key]) -> list[str]:
    timing = standing.is_publishable(row, unproven)
    state = standing.status(row, unproven)
    times = _times(row, "timing", timing, bases, unproven) if timing else ["not timed" if state == "passed" else state, ""]
    return [*times, *errors(row), *texts(columns, Entry(row, timing))]


def _gpu_figures(row: Row, bases: list[str], unproven: Collection[standing.Key]) -> list[str]:
    timing, replay = standing.is_publishable(row, unproven), standing.is_publishable(row, unproven, "replay")
    times = _times(row, "replay", replay, bases, unproven) if replay else ["not timed" if timing else "", ""]
    device_only = texts(report_columns.DEVICE_ONLY_DETAILS, Entry(row, replay))
    return [*times, *device_only, *texts(report_columns.GPU_DETAILS, Entry(row, timing))]


def _times(row: Row, column: str, timing: Timing, bases: list[str], unproven: Collection[standing.Key]) -> list[str]:
    """Time with its interval, and the ratio to each baseline."""
    interval = formatting.duration_interval(timing.time_us, timing.low_us, timing.high_us)
    ratios = [f"{_interval(one)} x {escape(one.baseline)} {standing.verdict(row, one, unproven)}" for one in timing.against]
    if row.implementation in bases:
        ratios.insert(0, "baseline")
    return [interval, "; ".join(ratios)]


def texts(columns: Iterable[ReportColumn], entry: Entry) -> list[str]:
    return [column.in_markdown(entry) for column in columns]


def errors(row: Row) -> list[str]:
    """Worst error over its limit and whose, largest relative error, informative of all tensors."""
    return texts(report_columns.ERRORS, Entry(row))
