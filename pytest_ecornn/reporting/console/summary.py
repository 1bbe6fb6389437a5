"""What a terminal shows of a report: the answers, how sure they are, what the gate found; of few rows each as well.

Of several reports the fastest of each case on each machine, side by side. No ratio is taken across machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_ecornn.regression.gate import RegressionReport
from pytest_ecornn.reporting import answer_table, boundary_sizes, gate_tables, standing
from pytest_ecornn.reporting.answer import Answer, answers
from pytest_ecornn.reporting.conclusions import Conclusions
from pytest_ecornn.reporting.console import page
from pytest_ecornn.reporting.console.rows_table import rows_table
from pytest_ecornn.reporting.stored.load import Report
from pytest_ecornn.results import formatting

_MAX_LISTED_ROWS = 16  # that are shown one by one below the answers
_NOTE = "Each ratio is to a baseline on the same machine, under 1 where the fastest is faster. Bold: certainly the fastest."


def print_summary(console: Console, conclusions: Conclusions, compared: RegressionReport | None = None) -> None:
    """compared: with an earlier report."""
    rows, lines = conclusions.rows, conclusions.counts
    if any(row.timing for row in rows):
        shown = [answer for answer in conclusions.answers if answer.verdict != "skipped"]  # of the others the counts suffice
        page.print_table(console, answer_table.terminal_table(shown, console.width))
        if sum(row.timing is not None for row in rows) <= _MAX_LISTED_ROWS:
            page.print_table(console, rows_table(rows, conclusions.unproven))
        causes = [f"undecided: {group.line}" for group in conclusions.undecided]
        lines = [conclusions.answer_counts, *causes, *lines, *conclusions.basis]
    if compared:
        print_comparison_table(console, compared)
    boundaries = filter(None, [boundary_sizes.line(rows)])
    print_lines(
        console, [*lines, *boundaries, *conclusions.more_budget, *(gate_tables.summary_lines(compared) if compared else ())]
    )


def print_comparison_table(console: Console, compared: RegressionReport) -> None:
    """Prints what got slower, and what may have, where anything did."""
    if table := gate_tables.terminal_table(compared):
        page.print_table(console, table)


def print_lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(formatting.printable(line), markup=False, highlight=False)


def print_reports(console: Console, reports: Mapping[str, Report]) -> None:
    """Prints a line for each case that any report has timed, a column for each report. reports: by where they lie."""
    labels = _labels(list(reports.values()))
    page.print_table(console, reports_table(list(reports.values()), labels))
    sources = [f"{label}: {path}, {reports[path].run.started}" for label, path in zip(labels, reports, strict=True)]
    print_lines(console, [_NOTE, *sources])


def reports_table(reports: Sequence[Report], labels: Sequence[str]) -> Table:
    """Returns the table. labels: of the reports.

    Cases are in the order of the first report that has them, device-only times a line below.
    """
    of_reports = [_answers(report) for report in reports]
    table = answer_table.empty_table()
    table.add_column("case", overflow="fold")
    for label in labels:
        table.add_column(Text(formatting.one_line(label)), overflow="fold")
    cases = dict.fromkeys(case for found in of_reports for case, _ in found)
    for case in cases:
        for column, of_column in standing.COLUMNS.items():
            shown = [found.get((case, column)) for found in of_reports]
            if any(shown):
                name = formatting.one_line(case) if column == "timing" else f"  {of_column}"
                table.add_row(Text(name), *map(_cell, shown))
    return table


def _answers(report: Report) -> dict[tuple[str, str], Answer]:
    found = answers(report.rows, standing.unproven(report.rows))
    return {(answer.case, answer.column): answer for answer in found if answer.verdict != "skipped"}


def _cell(answer: Answer | None) -> Text:
    """Returns the fastest with its time, and its ratio to the baseline."""
    if answer is None:
        return Text("-", "dim")
    fastest, compared = answer_table.with_comparison(answer)
    style = answer_table.STYLES.get(answer.verdict, "")
    return Text.assemble(Text(fastest, "bold" if answer.bold else ""), "\n", (compared, style))


def _labels(reports: Sequence[Report]) -> list[str]:
    """Returns what each column is headed by: the GPU, else the CPU; with the run's start where several have the same."""
    names = [report.run.hardware or "unknown machine" for report in reports]
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name}, {report.run.started}" for name, report in zip(names, reports, strict=True)]
