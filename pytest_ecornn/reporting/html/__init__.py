"""report.html: one file for a browser that fetches nothing: who is faster on which case, how sure that is, and each figure.

Without JavaScript it is a page of tables and static pictures. With it rows are filtered and sorted, pictures show their figures
under the pointer, and a cell or a point shows its details on a click.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_ecornn.reporting import standing, undecided
from pytest_ecornn.reporting.conclusions import Conclusions
from pytest_ecornn.reporting.html import heat_map, page, plots, row_data
from pytest_ecornn.reporting.pictures import palette
from pytest_ecornn.results import formatting
from pytest_ecornn.results.run_info import RunInfo

_LIBRARY = "vendor/uplot"


def render(run: RunInfo, conclusions: Conclusions, age: str = "") -> str:
    """Returns the page. Everything that comes from rows or the run is escaped. age: what changed since it was measured."""
    rows, unproven = conclusions.rows, conclusions.unproven
    timed = [row for row in rows if row.kind == "benchmark" and row.status != "skipped"]
    headline = timed or [row for row in rows if row.status != "skipped"]
    drawn, omitted = plots.curves_of(timed, unproven)
    roofs = plots.rooflines_of(timed, unproven, run.ceilings)
    data = {**row_data.columns(timed, unproven), "pictures": [picture.data for picture in (*drawn, *roofs)]}
    return page.render(
        __package__,
        "report.html.jinja",
        **_inlined(_has_pictures(data)),
        run=run,
        age=age,
        machine=run.machine_name,
        duration=formatting.duration(run.seconds * 1e6),
        implementations=formatting.count(len(standing.implementations(headline)), "implementation"),
        cases=formatting.count(len(standing.cases(headline)), "case"),
        is_timed=any(row.timing for row in timed),
        counts=[*filter(None, [conclusions.answer_counts])],
        certainty=conclusions.certainty,
        score=run.score.one_line() if run.score else "",
        undecided=conclusions.undecided,
        undecided_header=undecided.HEADER,
        skipped=[(name, standing.reasons_line(reasons)) for name, reasons in standing.skipped(rows).items()],
        failures=conclusions.failures,
        maps=heat_map.of_rows(timed, unproven, conclusions.answers),
        curves=drawn,
        omitted_curves=omitted,
        rooflines=roofs,
        data=page.script_json(data),
    )


def _has_pictures(data: Mapping[str, Any]) -> bool:
    """Whether there is a curve, a roofline, or a timing with samples to draw in its details."""
    timings = (timing for column in standing.COLUMNS for timing in data[column] if timing)
    return bool(data["pictures"]) or any(len(samples) > 1 for *_, samples in timings)


def _inlined(has_pictures: bool) -> dict[str, Any]:
    """Returns the page's style, its scripts in their order, and the licence of the library; without pictures there is none."""
    drawing = [f"{_LIBRARY}/uPlot.iife.min.js", "chart.js", "plot.js", "pictures.js"] if has_pictures else []
    styles = [f"{_LIBRARY}/uPlot.min.css", "report.css", "pictures.css"] if has_pictures else ["report.css"]
    return {
        "style": "".join(page.asset(__package__, name) for name in styles) + palette.style_sheet(),
        "scripts": [page.asset(__package__, name) for name in ("numbers.js", *drawing, "report.js")],
        "licence": page.asset(__package__, f"{_LIBRARY}/LICENSE") if has_pictures else "",
    }
