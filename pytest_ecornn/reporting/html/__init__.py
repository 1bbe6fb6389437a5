"""report.html: one file for a browser that fetches nothing: who is faster on which case, how sure that is, and each figure.

Without JavaScript it is a page of tables. With it rows are filtered and sorted, and a cell shows its details on a click.
"""

from __future__ import annotations

from collections.abc import Collection

from pytest_ecornn.reporting import answer_table, failures, standing
from pytest_ecornn.reporting.answer import answers
from pytest_ecornn.reporting.html import curves, heat_map, page, rooflines, row_data
from pytest_ecornn.reporting.pictures import palette
from pytest_ecornn.reporting.terminal import certainty_lines, summary_lines
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.run_info import RunInfo


def render(run: RunInfo, rows: list[Row], unproven: Collection[standing.Key]) -> str:
    """Returns the page. Everything that comes from rows or the run is escaped."""
    summary = answers(rows, unproven)
    timed = [row for row in rows if row.kind == "benchmark" and row.status != "skipped"]
    counts = [answer_table.counts_line(summary)] if summary else []
    drawn, omitted = curves.of_rows(timed, unproven)
    return page.render(
        __package__,
        "report.html.jinja",
        page.asset(__package__, "report.css") + palette.style_sheet(),
        page.asset(__package__, "report.js"),
        run=run,
        machine=run.machine_name,
        duration=formatting.duration(run.seconds * 1e6),
        implementations=formatting.count(len(standing.implementations(timed)), "implementation"),
        cases=formatting.count(len(standing.cases(timed)), "case"),
        counts=counts,
        certainty=[*summary_lines(rows, unproven), *(certainty_lines(run.settings) if summary else [])],
        score=run.score.one_line() if run.score else "",
        failures=failures.of_rows(rows),
        maps=heat_map.of_rows(timed, unproven, summary),
        curves=drawn,
        omitted_curves=omitted,
        rooflines=rooflines.of_rows(timed, unproven, run.ceilings),
        data=page.script_json(row_data.columns(timed, unproven)),
    )
