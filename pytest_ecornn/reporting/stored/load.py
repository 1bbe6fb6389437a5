"""Loads a stored report for any program: its run and its rows, as this version has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_ecornn.reporting.json_report import read_report
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.run_info import RunInfo

REPORT_NAME = "report.json"


@dataclass(frozen=True)
class Report:
    """A stored report. run: when, how and on which machine. rows: a row for each implementation and case."""

    run: RunInfo
    rows: list[Row]


def load_report(path: str | Path) -> Report:
    """Loads a report.json, or that of a folder.

    Raises ReportError, in one line, for a file that cannot be read, is of another version, or holds something else.
    """
    return Report(*read_report(report_path(Path(path))))


def report_path(given: Path) -> Path:
    """Returns the report.json of a folder, or the file itself."""
    return given / REPORT_NAME if given.is_dir() else given
