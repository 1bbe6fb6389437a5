"""Several stored reports side by side: the fastest of each case on each machine. No ratio is taken across machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_ecornn.reporting import answer_table, standing
from pytest_ecornn.reporting.answer import Answer, answers
from pytest_ecornn.reporting.console import page
from pytest_ecornn.reporting.stored.load import Report
from pytest_ecornn.results import formatting

_NOTE = "Each ratio is to a baseline on the same machine, under 1 where the fastest is faster. Bold: certainly the fastest."


def print_reports(console: Console, reports: Mapping[str, Report]) -> None:
    """Prints a line for each case that any report has timed, a column for each report. reports: by where they lie."""
    labels = _labels(list(reports.values()))
    page.print_table(console, reports_table(list(reports.values()), labels))
    sources = [f"{label}: {path}, {reports[path].run.started}" for label, path in zip(labels, reports, strict=True)]
    for line in (_NOTE, *sources):
        console.print(formatting.printable(line), markup=False, highlight=False)


def reports_table(reports: Sequence[Report], labels: Sequence[str]) -> Table:
    """Returns the table. labels: of the reports.

    Cases are in the order of the first report that has them, device-only times a line below.
    """
    of_reports = [_answers(report) for report in reports]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
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
