"""report.html: one file for a browser that fetches nothing: who is faster on which case, how sure that is, and each figure.

Without JavaScript it is a page of tables. With it rows are filtered and sorted, and a cell shows its details on a click.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Collection
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from pytest_ecornn.reporting import answer_table, failures, standing
from pytest_ecornn.reporting.answer import answers
from pytest_ecornn.reporting.html import curves, heat_map, rooflines, row_data
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
    style, script = _asset("report.css") + palette.style_sheet(), _asset("report.js")
    drawn, omitted = curves.of_rows(timed, unproven)
    page: str = _template().render(
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
        style=style,
        script=script,
        style_hash=_csp_hash(style),
        script_hash=_csp_hash(script),
        data=_script_json(row_data.columns(timed, unproven)),
    )
    return page


def _script_json(data: Any) -> Markup:
    """JSON that may stand in a script element: it holds nothing that ends one."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _csp_hash(text: str) -> str:
    """The source that a content security policy names an inline script or style by."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["printable"] = formatting.printable
    return environment.from_string(_asset("report.html.jinja"))
