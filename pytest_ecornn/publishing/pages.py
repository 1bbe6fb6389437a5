"""The pages of the site, as HTML by path: an index of all machines, a page for each of them, and one for each report."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, urlencode

from markupsafe import Markup

from pytest_ecornn.publishing import change_points, history, sparkline, suite_pages
from pytest_ecornn.publishing.change_points import Step
from pytest_ecornn.publishing.history import History, Series
from pytest_ecornn.publishing.stored_runs import Machine, StoredRun
from pytest_ecornn.reporting import answer_table, html, standing
from pytest_ecornn.reporting.answer import Answer, answers
from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.reporting.html import page
from pytest_ecornn.results import formatting

REPORT, INDEX = "report.html", "index.html"
_MAX_CHANGES = 50  # on the index
_COMMIT = 7  # digits that are shown

Cells = dict[tuple[str, str], tuple[StoredRun, Answer]]  # by case and column, of one machine


def of_machines(machines: Sequence[Machine], refused: list[str]) -> Iterator[tuple[str, str]]:
    """Yields path and text of each page, the index last. A suite's report that cannot be read becomes a line of `refused`."""
    histories = {one.name: history.of_runs(one.reports) for one in machines}
    for one in machines:
        for run in one.runs:
            if run.report:
                found = run.report
                yield f"{run.path}/{REPORT}", html.render(found.run, found.rows, standing.unproven(found.rows))
            for suite in run.suites:
                try:
                    yield f"{run.path}/{suite.stem}.html", _suite_page(run, suite)
                except ReportError as error:
                    refused.append(str(error))
        yield f"{one.name}/{INDEX}", _machine_page(one, histories[one.name])
    yield INDEX, _index(machines, histories)


def _url(path: str) -> str:
    return quote(os.fsencode(path))


def _render(name: str, title: str, home: str, **values: object) -> str:
    style = page.asset(html.__name__, "report.css") + page.asset(__package__, "site.css")
    return page.render(__package__, name, style, [page.asset(__package__, "site.js")], title=title, home=home, **values)


def _suite_page(run: StoredRun, suite: Path) -> str:
    up = "../" * (2 if run.name else 1)
    title, body = suite_pages.read(suite)
    title = f"{title.removesuffix(' on this machine') or suite.stem} on {run.machine}"
    return _render("suite.html.jinja", title, f"{up}{INDEX}", body=body, data=suite.name)


# The index.


def _index(machines: Sequence[Machine], histories: dict[str, History]) -> str:
    found = {one.name: _newest_answers(one) for one in machines if one.reports}
    keys = sorted({key for cells in found.values() for key in cells}, key=lambda key: (key[0], key[1] != "timing"))
    changes = [change for one in machines for change in _changes(one, histories[one.name])]
    changes.sort(key=lambda change: change["since"], reverse=True)
    looked_at = sum(one.looked_at for one in histories.values())
    return _render(
        "index.html.jinja",
        "Recurrent layers, verified and timed",
        "",
        machines=_labels([one for one in machines if one.reports]),
        lines=[_line(key, list(found.values())) for key in keys],
        listed=[_listed(one) for one in machines],
        changes=changes[:_MAX_CHANGES],
        more_changes=len(changes[_MAX_CHANGES:]),
        method=_method(looked_at, "machine", len(changes)),
    )


def _labels(machines: Sequence[Machine]) -> list[str]:
    names = [one.label for one in machines]
    return [label if names.count(label) == 1 else f"{label} ({one.name})" for label, one in zip(names, machines, strict=True)]


def _newest_answers(one: Machine) -> Cells:
    """The newest answer to each case that any run has timed."""
    found: Cells = {}
    for run in one.reports:
        assert run.report
        rows = run.report.rows
        for answer in answers(rows, standing.unproven(rows)):
            if answer.verdict != "skipped":
                found[answer.case, answer.column] = run, answer
    return found


def _line(key: tuple[str, str], machines: Sequence[Cells]) -> dict[str, object]:
    case, column = key
    return {"case": case, "of": _of(column), "cells": [_cell(cells.get(key)) for cells in machines]}


def _of(column: str) -> str:
    return "" if column == "timing" else standing.COLUMNS[column]


def _cell(found: tuple[StoredRun, Answer] | None) -> dict[str, object] | None:
    if found is None:
        return None
    run, answer = found
    name, time, ratio, baseline, verdict = answer_table.cells(answer)
    compared = f"{ratio} to {baseline}, {verdict}" if ratio else verdict
    fastest = f"{name} {time}".strip()
    return {"link": _row_link(run, answer), "fastest": fastest, "compared": compared, "is_certain": answer.is_certain}


def _row_link(run: StoredRun, answer: Answer) -> str:
    """The report's details of the fastest, from the index."""
    state = {"search": answer.case, **({} if answer.column == "timing" else {"column": answer.column})}
    if answer.fastest:
        state["row"] = f"{answer.fastest.name} {answer.case}"
    return f"{_url(run.path)}/{REPORT}#{urlencode(state, errors='backslashreplace')}"


def _listed(one: Machine) -> dict[str, object]:
    newest = one.reports[-1] if one.reports else None
    suites = {path.stem: f"{_url(run.path)}/{_url(path.stem)}.html" for run in one.runs for path in run.suites}
    return {
        "name": one.name,
        "link": f"{_url(one.name)}/{INDEX}",
        "hardware": one.label,
        "newest": {"link": f"{_url(newest.path)}/{REPORT}", "text": _run_name(newest)} if newest else None,
        "runs": len(one.runs),
        "suites": [{"text": name, "link": link} for name, link in sorted(suites.items())],
    }


def _run_name(run: StoredRun) -> str:
    """When it was, and of which commit."""
    if run.report is None:
        return run.name or "undated"
    commit = str(run.report.run.machine.get("commit") or "no commit")
    return f"{run.started[:10]} {commit[:_COMMIT]}"


def _changes(one: Machine, found: History) -> Iterator[dict[str, str]]:
    for series in found.changed:
        for step in series.steps:
            yield {
                "text": _change(step),
                "row": _row_name(series),
                "link": f"{_url(one.name)}/{INDEX}#{_anchor(series)}",
                "machine": one.name,
                "since": _run_name(one.reports[step.run]),
            }


def _change(step: Step) -> str:
    words = "slower" if step.ratio > 1 else "faster"
    return f"{formatting.percent(abs(step.ratio - 1))} {words}, {formatting.ratio_interval(step.ratio, step.low, step.high)}"


def _row_name(series: Series) -> str:
    implementation, case, column = series.key
    return f"{implementation} on {case}" + (f", {_of(column)}" if _of(column) else "")


def _anchor(series: Series) -> str:
    return quote("_".join(series.key), safe="", errors="backslashreplace")


def _method(looked_at: int, noun: str, marked: int) -> str:
    if not looked_at:
        return f"A step is looked for where a row has {2 * change_points.MIN_RUNS} runs on one machine."
    chance = f"{change_points.SIGNIFICANCE:.0%}"
    none = "" if marked else "No row has changed its level. "
    return none + (
        f"{formatting.count(looked_at, 'test')} looked for a step in the history of a row. By chance alone a {noun} has a "
        f"false one with {chance} at most. A step needs {change_points.MIN_RUNS} runs on either side and "
        f"{change_points.SMALLEST:.0%}. Drifts are not marked, and times of different machines are not compared."
    )


# A machine's page.


def _machine_page(one: Machine, found: History) -> str:
    exchanged = {id(run): found.exchanged.get(number, "") for number, run in enumerate(one.reports)}
    runs = [_listed_run(run, exchanged.get(id(run), "")) for run in reversed(one.runs)]
    series = sorted(found.series, key=lambda each: (not each.steps, each.key[1], each.key[2] != "timing", each.key[0]))
    return _render(
        "machine.html.jinja",
        one.name,
        f"../{INDEX}",
        hardware=one.label,
        runs=runs,
        series=[_listed_series(one, found, each) for each in series] if len(one.reports) > 1 else [],
        first=_run_name(one.reports[0]) if one.reports else "",
        last=_run_name(one.reports[-1]) if one.reports else "",
        method=_method(found.looked_at, "page", len(found.changed)),
    )


def _listed_run(run: StoredRun, exchanged: str) -> dict[str, object]:
    at = f"{_url(run.name)}/" if run.name else ""
    pages = [{"text": path.stem, "link": f"{at}{_url(path.stem)}.html"} for path in run.suites]
    machine = run.report.run.machine if run.report else {}
    packages = machine.get("packages") or {}
    versions = {"torch": packages.get("torch"), "CUDA": (machine.get("gpu") or {}).get("cuda")}
    return {
        "text": _run_name(run),
        "exchanged": exchanged,
        "cases": len({row.case for row in run.report.rows if row.kind == "benchmark"}) if run.report else "",
        "software": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        "pages": [*([{"text": "report", "link": f"{at}{REPORT}"}] if run.report else []), *pages],
        "data": [{"text": path.name, "link": f"{at}{_url(path.name)}"} for path in run.files],
    }


def _listed_series(one: Machine, found: History, series: Series) -> dict[str, object]:
    implementation, case, column = series.key
    newest = series.points[-1]
    time = formatting.duration_interval(newest.time_us, newest.low_us, newest.high_us)
    changes = [f"{_change(step)}, since {_run_name(one.reports[step.run])}" for step in series.steps]
    label = f"Times of {len(series.points)} runs{': ' if changes else ''}{'; '.join(changes)}"
    return {
        "case": case,
        "of": _of(column),
        "implementation": implementation,
        "id": _anchor(series),
        "newest": time if newest.run == len(one.reports) - 1 else f"{time} in {_run_name(one.reports[newest.run])}",
        "picture": Markup(sparkline.render(series, len(one.reports), found.exchanged, label)),
        "changes": changes,
    }
