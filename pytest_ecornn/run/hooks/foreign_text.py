"""Neutralises text of an implementation that a terminal would obey, before pytest shows it (`formatting.printable`)."""

from __future__ import annotations

import warnings

import pytest

from pytest_ecornn.results.formatting import printable


def neutralise(report: pytest.TestReport) -> None:
    """A row's report, in place: what was raised, skipped for and printed."""
    report.sections = [(name, printable(text)) for name, text in report.sections]
    if isinstance(report.longrepr, str):
        report.longrepr = printable(report.longrepr)
    elif isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        report.longrepr = (path, line, printable(reason))
    elif report.longrepr is not None and (shown := printable(report.longreprtext)) != report.longreprtext:
        report.longrepr = shown  # a traceback's colours are less than what hides in it


def neutralise_warning(warning: warnings.WarningMessage) -> None:
    """A warning, in place, before pytest shows it."""
    if (shown := printable(warning.message)) != str(warning.message):
        warning.message = shown
