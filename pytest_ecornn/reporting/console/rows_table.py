"""A short run's rows on a terminal, below the answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rich.table import Table
from rich.text import Text

from pytest_ecornn.reporting import answer, report_columns, standing
from pytest_ecornn.reporting.answer_table import STYLES, CaseName, empty_table
from pytest_ecornn.reporting.report_columns import Entry, ReportColumn
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import Row, Timing

_MAX_NAME_CHARS = 60


def rows_table(rows: list[Row], unproven: Collection[standing.Key]) -> Table:
    """A line for each row that was to be timed and was not skipped, below its case; the fastest in bold. Fits 80 columns.

    A row's device-only time has a line of its own below it.
    """
    shown = [row for row in rows if row.kind == "benchmark" and row.status != "skipped"]
    names = standing.baselines(shown)
    table = empty_table()
    table.add_column("case, implementation", overflow="fold")
    table.add_column("time", no_wrap=True, justify="right")
    of = formatting.one_line(names[0], 20) if len(names) == 1 else "baseline"
    table.add_column(Text(f"x {of} [interval]"), justify="right", min_width=20)
    table.add_column("verdict", no_wrap=True)
    timing_columns = report_columns.shown(report_columns.TERMINAL_TIMING, [Entry(row, row.timing) for row in shown])
    for figure in (*report_columns.TERMINAL, *timing_columns):
        table.add_column(figure.title, no_wrap=True, justify="right")
    for case, of_case in standing.by_case(standing.in_order(shown)).items():
        bases = standing.baselines(of_case)
        table.add_row(CaseName(formatting.one_line(case, 2 * _MAX_NAME_CHARS)))
        bold = {column: answer.of_case(of_case, unproven, column).bold for column in standing.COLUMNS}
        for row in of_case:
            entries = {column: Entry(row, standing.is_publishable(row, unproven, column)) for column in standing.COLUMNS}
            further = _further(report_columns.TERMINAL, entries["timing"]), _further(timing_columns, entries["timing"])
            table.add_row(*_cells(row, bases, row.implementation == bold["timing"], unproven), *further[0], *further[1])
            if entries["replay"].timing:
                cells = _device_only_cells(row, bases, row.implementation == bold["replay"], unproven)
                table.add_row(*cells, *[Text()] * len(further[0]), *_further(timing_columns, entries["replay"]))
        table.add_section()
    return table


def _cells(row: Row, bases: list[str], is_best: bool, unproven: Collection[standing.Key]) -> list[Text]:
    name = Text(f"  {formatting.one_line(row.implementation, _MAX_NAME_CHARS)}", "bold" if is_best else "")
    timing = standing.is_publishable(row, unproven)
    if timing is None:
        state = standing.status(row, unproven)
        return [name, Text(), Text(), _verdict(state if state != "passed" else "not timed")]
    return [name, *_figures(row, "timing", timing, bases, is_best, unproven)]


def _device_only_cells(row: Row, bases: list[str], is_best: bool, unproven: Collection[standing.Key]) -> list[Text]:
    timing = standing.is_publishable(row, unproven, "replay")
    assert timing is not None
    name = Text(f"    {standing.COLUMNS['replay']}", "bold" if is_best else "")
    return [name, *_figures(row, "replay", timing, bases, is_best, unproven)]


def _further(columns: Iterable[ReportColumn], entry: Entry) -> list[Text]:
    return [Text(column.in_terminal(entry)) for column in columns]


def _figures(
    row: Row, column: str, timing: Timing, bases: list[str], is_best: bool, unproven: Collection[standing.Key]
) -> list[Text]:
    """Time, ratio to the first baseline, and verdict."""
    is_base = row.implementation in bases[:1]
    one = None if is_base else standing.ratio_to(row, bases[0] if bases else None, column)
    return [
        Text(formatting.duration(timing.time_us), "bold" if is_best else ""),
        Text(formatting.ratio_interval(one.ratio, one.low, one.high) if one else ""),
        _verdict(standing.verdict(row, one, unproven) if one else "baseline" if is_base else ""),
    ]


def _verdict(word: str) -> Text:
    return Text(formatting.one_line(word, 20), STYLES.get(word, ""))
