"""Terminal output of a run: while rows finish, and after all have finished."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import IO, Any, cast

import pytest
from rich.console import Console

from pytest_ecornn.regression.gate import RegressionReport
from pytest_ecornn.reporting.conclusions import Conclusions
from pytest_ecornn.reporting.console import page, progress
from pytest_ecornn.reporting.console.summary import print_summary
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import Row
from pytest_ecornn.run import run_seed


class ProgressDisplay:
    """A live bar on a terminal, a line a row elsewhere; nothing of its own where pytest was asked for more or less words."""

    def __init__(self, config: pytest.Config):
        self.total = self._done = 0
        self.is_shown = config.get_verbosity() == 0
        self._config = config
        self._progress: progress.Progress | None = None

    def start(self) -> None:
        """Keeps pytest's own line of letters out of ours."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if self.is_shown and reporter is not None:
            reporter.showfspath = False
            reporter._show_progress_info = False  # its percentage would stand alone on a line

    def report(self, row: Row | None) -> None:
        if row is not None and self.is_shown:
            self._next().row_done(row, self._done, self.total)

    def report_unsupported(self, summary: str, outcome: str) -> None:
        """All rows that an implementation does not support, by one line."""
        if not self.is_shown:
            return
        shown = self._next()
        if outcome == "failed":
            shown.item_done(summary, outcome, self._done, self.total)
        else:
            shown.unsupported(summary, self._done, self.total)

    def _next(self) -> progress.Progress:
        """Counts an item. Where rows are timed, those that are only verified share lines."""
        if self._progress is None:
            folds = self._config.getoption("--ecornn-bench")
            self._progress = progress.Progress(cast(IO[str], _Stream(self._config)), folds)
        self._done += 1
        return self._progress

    def write_line(self, text: str) -> None:
        """A line, whatever pytest was asked for: what takes long must not look like a hang."""
        text = formatting.one_line(text)
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or (self._progress is not None and self._progress.print_above(text)):
            return
        reporter.ensure_newline()
        reporter.write_line(text)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()


class _Stream(io.TextIOBase):
    """pytest's terminal reporter as a text stream."""

    def __init__(self, config: pytest.Config):
        self._reporter: Any = config.pluginmanager.get_plugin("terminalreporter")

    def write(self, text: str) -> int:
        if self._reporter is not None:
            self._reporter.write(page.encodable(text, self.encoding), flush=True)
        return len(text)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return page.encoding_of(self._reporter) if self._reporter is not None else "utf-8"

    def isatty(self) -> bool:
        return self._reporter is not None and bool(self._reporter.isatty)


def write_summary(
    reporter: Any,
    rows: list[Row],
    settings: Mapping[str, Any],
    compared: RegressionReport | None,
    written: list[str],
    command: str = "",
) -> None:
    """The answers, how sure they are, what the gate found, and where the report lies; of a short run each row as well."""
    console = Console(
        file=page.Page(page.encoding_of(reporter)),
        width=reporter._tw.fullwidth if bool(reporter.isatty) else page.PLAIN_WIDTH,  # a bool before pytest 8.4.2
        force_terminal=reporter._tw.hasmarkup,
    )
    reporter.section("ecornn", sep="=", bold=True)
    print_summary(console, Conclusions.of_rows(rows, settings, command), compared)
    if (seed := settings.get("seed")) is not None:
        written = [run_seed.line(seed), *written]
    for line in written:
        console.print(formatting.printable(line), markup=False, highlight=False, soft_wrap=True)
    assert isinstance(console.file, page.Page)
    reporter.write(page.encodable(console.file.getvalue(), console.file.encoding))
