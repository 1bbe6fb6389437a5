"""The pages of the site, as HTML by path: an index of all machines, a page for each of them, and one for each report."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from math import log
from pathlib import Path
from urllib.parse import quote, urlencode

from markupsafe import Markup

from pytest_ecornn.publishing import change_points, history
from pytest_ecornn.publishing.change_points import Step
from pytest_ecornn.publishing.history import History, Series
from pytest_ecornn.publishing.stored_runs import REPORT_PAGE, Machine, Source, StoredRun, SuiteReport
from pytest_ecornn.reporting import answer_table, html, standing
from pytest_ecornn.reporting.answer import Answer, answers
from pytest_ecornn.reporting.conclusions import Conclusions
from pytest_ecornn.reporting.html import page
from pytest_ecornn.results import formatting

INDEX = "index.html"
_MAX_CHANGES = 50  # on the index
_COMMIT = 7  # digits that are shown
# Of the picture of a row's history, in pixels.
_WIDTH, _HEIGHT, _MARGIN = 200, 32, 3
_LEAST = log(1.1)  # its axis covers 10 % at least, so that noise looks like noise

Cells = dict[tuple[str, str], tuple[StoredRun, Source, Answer]]  # by case and column, of one machine


def of_machines(machines: Sequence[Machine]) -> Iterator[tuple[str, str]]:
    """Yields path and text of each page, the index last. The machine with the newest report is the first."""
    machines = sorted(machines, key=lambda one: max(source.begun for run in one.runs for source in run.sources), reverse=True)
    histories = {one.name: history.of_runs(one.runs) for one in machines}
    for one in machines:
        for run in one.runs:
            if run.report:
                found = run.report
                source = run.sources[0]
                yield f"{run.path}/{REPORT_PAGE}", html.render(found.run, Conclusions.of_run(found.run, found.rows), source.age)
            for suite in run.suites:
                yield f"{run.path}/{suite.name}.html", _suite_page(run, suite)
        yield f"{one.name}/{INDEX}", _machine_page(one, histories[one.name])
    yield INDEX, _index(machines, histories)


def _url(path: str) -> str:
    return quote(os.fsencode(path))


def _render(name: str, title: str, home: str, **values: object) -> str:
    style = page.asset(html.__name__, "report.css") + page.asset(__package__, "site.css")
    return page.render(__package__, name, style, [page.asset(__package__, "site.js")], title=title, home=home, **values)


def _suite_page(run: StoredRun, suite: SuiteReport) -> str:
    up = "../" * (2 if run.name else 1)
    title = f"{suite.title.removesuffix(' on this machine') or suite.name} on {run.machine}"
    data = {"link": _url(suite.path.name), "text": suite.path.name}
    return _render("suite.html.jinja", title, f"{up}{INDEX}", body=suite.body, data=data, age=suite.source.age)


# The index.


def _index(machines: Sequence[Machine], histories: dict[str, History]) -> str:
    found = {one.name: _newest_answers(one) for one in machines}
    keys = sorted({key for cells in found.values() for key in cells}, key=lambda key: (key[0], key[1] != "timing"))
    changes = [change for one in machines for change in _changes(one, histories[one.name])]
    changes.sort(key=lambda change: change["since"], reverse=True)
    looked_at = sum(one.looked_at for one in histories.values())
    return _render(
        "index.html.jinja",
        "Recurrent layers, verified and timed",
        "",
        machines=_labels(machines),
        lines=[_line(key, list(found.values())) for key in keys],
        newest=_newest(machines[0]),
        ages=[source.age for one in machines for run in one.runs for source in run.sources],
        listed=[_listed(one) for one in machines],
        changes=changes[:_MAX_CHANGES],
        more_changes=len(changes[_MAX_CHANGES:]),
        method=_method(looked_at, "machine", len(changes)),
    )


def _newest(one: Machine) -> dict[str, str]:
    """The newest report of a machine, as the index begins with it."""
    run, source = max(((run, source) for run in one.runs for source in run.sources), key=lambda found: found[1].begun)
    (started, commit), name = source.begun, Path(source.page).stem
    text = f"{one.label}, {name}, {started[:10]} {commit[:_COMMIT] or 'no commit'}"
    return {"link": _source_link(run, source), "text": text, "age": source.age}


def _labels(machines: Sequence[Machine]) -> list[str]:
    names = [one.label for one in machines]
    return [label if names.count(label) == 1 else f"{label} ({one.name})" for label, one in zip(names, machines, strict=True)]


def _newest_answers(one: Machine) -> Cells:
    """The newest answer to each case that any run has timed; of one run that of its own report, else of a suite's."""
    found: Cells = {}
    for run in one.runs:
        of_run: Cells = {}
        for source in run.sources:
            for answer in answers(source.rows, source.unproven):
                if answer.verdict != "skipped":
                    of_run.setdefault((answer.case, answer.column), (run, source, answer))
        found |= of_run
    return found


def _line(key: tuple[str, str], machines: Sequence[Cells]) -> dict[str, object]:
    case, column = key
    answered = [cells.get(key) for cells in machines]
    fastest = dict.fromkeys(formatting.one_line(found[2].fastest.name) for found in answered if found and found[2].fastest)
    return {"case": case, "of": _of(column), "names": " ".join(fastest), "cells": list(map(_cell, answered))}


def _of(column: str) -> str:
    return "" if column == "timing" else standing.COLUMNS[column]


def _cell(found: tuple[StoredRun, Source, Answer] | None) -> dict[str, object] | None:
    if found is None:
        return None
    run, source, answer = found
    fastest, compared = answer_table.with_comparison(answer)
    return {
        "link": _row_link(run, source, answer),
        "fastest": fastest,
        "compared": "; ".join(filter(None, (compared, source.caveat, source.age))),
        "is_certain": answer.is_certain and not source.caveat,
    }


def _source_link(run: StoredRun, source: Source) -> str:
    return f"{_url(run.path)}/{_url(source.page)}"


def _row_link(run: StoredRun, source: Source, answer: Answer) -> str:
    """Returns the link from the index to the fastest's details in a run's report, or to a suite's page."""
    page = _source_link(run, source)
    if source.page != REPORT_PAGE:
        return page
    state = {"search": answer.case, **({} if answer.column == "timing" else {"column": answer.column})}
    if answer.fastest:
        state["row"] = f"{answer.fastest.name} {answer.case}"
    return f"{page}#{urlencode(state, errors='backslashreplace')}"


def _listed(one: Machine) -> dict[str, object]:
    newest = one.runs[-1]
    first = newest.sources[0]
    suites = {suite.name: (run, suite.source) for run in one.runs for suite in run.suites}
    return {
        "name": one.name,
        "link": f"{_url(one.name)}/{INDEX}",
        "hardware": one.label,
        "newest": {"link": _source_link(newest, first), "text": _run_name(newest), "age": first.age},
        "runs": len(one.runs),
        "suites": [
            {"text": name, "link": _source_link(run, source), "age": source.age}
            for name, (run, source) in sorted(suites.items(), key=lambda named: named[0])
        ],
    }


def _run_name(run: StoredRun) -> str:
    """When it was, and of which commit."""
    commit = str(run.fingerprint.get("commit") or "no commit")
    return f"{run.started[:10]} {commit[:_COMMIT]}"


def _changes(one: Machine, found: History) -> Iterator[dict[str, str]]:
    for series in found.changed:
        for step in series.steps:
            yield {
                "text": _change(step),
                "row": _row_name(series),
                "link": f"{_url(one.name)}/{INDEX}#{_anchor(series)}",
                "machine": one.name,
                "since": _run_name(one.runs[step.run]),
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
        f"{change_points.SMALLEST:.0%}. Drifts are not marked, and times of different machines are not compared. The chance "
        "takes logarithms of times as normal, and runs as little correlated."
    )


# A machine's page.


def _machine_page(one: Machine, found: History) -> str:
    runs = [_listed_run(run, found.exchanged.get(number, "")) for number, run in enumerate(one.runs)]
    series = sorted(found.series, key=lambda each: (not each.steps, each.key[1], each.key[2] != "timing", each.key[0]))
    return _render(
        "machine.html.jinja",
        one.name,
        f"../{INDEX}",
        hardware=one.label,
        runs=runs[::-1],
        series=[_listed_series(one, found, each) for each in series] if len(one.runs) > 1 else [],
        first=_run_name(one.runs[0]),
        last=_run_name(one.runs[-1]),
        method=_method(found.looked_at, "page", len(found.changed)),
    )


def _listed_run(run: StoredRun, exchanged: str) -> dict[str, object]:
    at = f"{_url(run.name)}/" if run.name else ""
    pages = [{"text": suite.name, "link": f"{at}{_url(suite.name)}.html"} for suite in run.suites]
    packages, gpu = run.fingerprint.get("packages") or {}, run.fingerprint.get("gpu") or {}
    versions = {"torch": packages.get("torch"), "CUDA": gpu.get("cuda")}
    return {
        "text": _run_name(run),
        "exchanged": exchanged,
        "cases": len({row.case for source in run.sources for row in source.rows if row.kind == "benchmark"}) or "",
        "software": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        "pages": [*([{"text": "report", "link": f"{at}{REPORT_PAGE}"}] if run.report else []), *pages],
        "data": [{"text": path.name, "link": f"{at}{_url(path.name)}"} for path in run.files],
    }


def _listed_series(one: Machine, found: History, series: Series) -> dict[str, object]:
    implementation, case, column = series.key
    newest = series.points[-1]
    time = formatting.duration_interval(newest.time_us, newest.low_us, newest.high_us)
    changes = [f"{_change(step)}, since {_run_name(one.runs[step.run])}" for step in series.steps]
    label = f"Times of {len(series.points)} runs{': ' if changes else ''}{'; '.join(changes)}"
    return {
        "case": case,
        "of": _of(column),
        "implementation": implementation,
        "id": _anchor(series),
        "newest": time if newest.run == len(one.runs) - 1 else f"{time} in {_run_name(one.runs[newest.run])}",
        "picture": Markup(_sparkline(series, len(one.runs), found.exchanged, label)),
        "changes": changes,
    }


def _sparkline(series: Series, runs: int, exchanged: Collection[int], label: str) -> Markup:
    """One row's history: times with intervals on a logarithmic axis, steps, and exchanges of the machine.

    runs: of the machine. exchanged: runs that were the first on another machine.
    """
    points = series.points
    low, high = log(min(point.low_us for point in points)), log(max(point.high_us for point in points))
    wider = max(0.0, _LEAST - (high - low)) / 2
    low, high = low - wider, high + wider

    def x(run: float) -> int:
        return round(_MARGIN + (_WIDTH - 2 * _MARGIN) * (run / (runs - 1) if runs > 1 else 0.5))

    def y(time_us: float) -> int:
        return round(_MARGIN + (_HEIGHT - 2 * _MARGIN) * (high - log(time_us)) / (high - low))

    line = " ".join(f"{x(point.run)},{y(point.time_us)}" for point in points)
    bars = "".join(f"M{x(point.run)} {y(point.low_us)}V{y(point.high_us)}" for point in points)
    marks = "".join(f'<path class="exchange" d="M{x(run - 0.5)} 0V{_HEIGHT}"/>' for run in sorted(exchanged))
    marks += "".join(f'<path class="step" d="M{x(step.run - 0.5)} 0V{_HEIGHT}"/>' for step in series.steps)
    head = Markup('<svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">').format(
        _WIDTH, _HEIGHT, label
    )
    return Markup(f'{head}<path d="{bars}"/><polyline points="{line}"/>{marks}</svg>')
