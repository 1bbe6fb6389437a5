"""What a terminal shows of a report: the answers, how sure they are, what the gate found; of few rows each as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from pytest_ecornn.regression.gate import RegressionReport
from pytest_ecornn.reporting import answer_table, boundary_sizes, gate_tables, standing, terminal
from pytest_ecornn.reporting.answer import answers
from pytest_ecornn.reporting.console import page
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import Row

_MAX_LISTED_ROWS = 16  # that are shown one by one below the answers


def print_summary(
    console: Console, rows: list[Row], settings: Mapping[str, Any], compared: RegressionReport | None = None
) -> None:
    """compared: with an earlier report."""
    unproven = standing.unproven(rows)
    lines = terminal.summary_lines(rows, unproven)
    if any(row.timing for row in rows):
        summary = answers(rows, unproven)
        shown = [answer for answer in summary if answer.verdict != "skipped"]  # of the others the counts suffice
        page.print_table(console, answer_table.terminal_table(shown, console.width))
        if sum(row.timing is not None for row in rows) <= _MAX_LISTED_ROWS:
            page.print_table(console, terminal.rows_table(rows, unproven))
        lines = [answer_table.counts_line(summary), *lines, *terminal.certainty_lines(settings)]
    if compared:
        print_comparison_table(console, compared)
    lines += boundary_sizes.lines(rows)
    print_lines(console, [*lines, *(gate_tables.summary_lines(compared) if compared else ())])


def print_comparison_table(console: Console, compared: RegressionReport) -> None:
    """Prints what got slower, and what may have, where anything did."""
    if table := gate_tables.terminal_table(compared):
        page.print_table(console, table)


def print_lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(formatting.printable(line), markup=False, highlight=False)
