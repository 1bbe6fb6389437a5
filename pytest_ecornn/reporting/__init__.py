"""Rows -> report.html, .md, .json and .csv, benchmark.json, summary.svg, comment.md, and what the terminal shows.

Reads rows and nothing else: it knows no implementation, runs nothing and needs no torch, so a report can be made anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytest_ecornn.regression.gate import RegressionReport
from pytest_ecornn.reporting import benchmark_json, csv_report, files, github, html, json_report, markdown
from pytest_ecornn.reporting.conclusions import Conclusions
from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.reporting.json_report import read_report
from pytest_ecornn.reporting.pictures import summary
from pytest_ecornn.reporting.standing import unproven
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.run_info import RunInfo

__all__ = ["ReportError", "RunInfo", "read_report", "unproven", "write_reports"]


def write_reports(directory: Path, run: RunInfo, rows: list[Row], compared: RegressionReport | None = None) -> list[Path]:
    """The files written; `compared`: with an earlier report.

    Raises ReportError, once every file has had its turn, naming those that could not be.
    """
    conclusions = Conclusions.of_run(run, rows)
    doubted = conclusions.unproven
    renderers: dict[str, Callable[[], str]] = {
        "report.json": lambda: json_report.render(run, rows, doubted, compared),
        "report.csv": lambda: csv_report.render(rows, doubted),
        "report.html": lambda: html.render(run, conclusions),
        "report.md": lambda: markdown.render(run, conclusions, compared),
        "benchmark.json": lambda: benchmark_json.render(run, rows, doubted),
        "summary.svg": lambda: summary.render(run, conclusions),
    }
    if compared:
        renderers["comment.md"] = lambda: github.comment(conclusions, compared)
    written, problems = [], []
    for name, render in renderers.items():
        try:
            files.write(directory / name, _rendered(directory / name, render))
            written.append(directory / name)
        except ReportError as error:
            problems.append(str(error))
    if problems:
        raise ReportError("; ".join(problems))
    return written


def _rendered(path: Path, render: Callable[[], str]) -> str:
    try:
        return render()
    except Exception as error:  # whatever is wrong with one output, hours of measuring must still reach the others
        text = " ".join(str(error).split())
        raise ReportError(f"{path}: cannot be rendered ({type(error).__name__}: {text})") from error
