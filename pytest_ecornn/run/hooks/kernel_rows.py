"""Rows of the fixture `ecornn`: from the test that made them, by its report, to the terminal and the report's files.

Registered in every run, so it imports nothing of ours before a row is there.
"""

from __future__ import annotations

import shlex
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_ecornn.results.rows import Row
    from pytest_ecornn.results.run_info import RunInfo

ROWS = pytest.StashKey["list[Row]"]()  # of a test


class KernelRows:
    """The rows of a run's tests, and when and how it was started. rows: all so far, in the process that reports."""

    def __init__(self, config: pytest.Config):
        self._config, self.started, self.start = config, datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        self.command = shlex.join(["pytest", *map(str, config.invocation_params.args)])
        self.rows: list[Row] = []
        self._written: list[str] = []

    def run_info(self, machine: dict[str, Any], **facts: Any) -> RunInfo:
        """The run so far. facts: more fields of it."""
        from pytest_ecornn.results.run_info import RunInfo

        return RunInfo(self.started, time.monotonic() - self.start, self.command, machine, **facts)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if call.when == "call" and (rows := item.stash.get(ROWS, None)):
            report.ecornn_kernel_rows = [row.as_dict() for row in rows]
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if hasattr(report, "ecornn_kernel_rows"):
            from pytest_ecornn.results.rows import Row

            rows = [Row.from_dict(row) for row in report.ecornn_kernel_rows]
            self.rows += rows
            self._annotate(rows, *report.location[:2])

    def _annotate(self, rows: list[Row], file: str, line: int | None) -> None:
        """Annotates each row that failed, at its test. file: relative to the root. line: from 0."""
        from pytest_ecornn.reporting import github

        if github.is_job():
            at = github.place(self._config.rootpath / file, (line or 0) + 1, self._config.rootpath)
            self._written += [github.annotation(problem, at) for problem in github.problems(rows)]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Adds to a CI job's summary, and writes the report where one was asked for and no run of ours writes it."""
        if not self.rows or hasattr(self._config, "workerinput"):
            return
        self._summarise()
        if self._config.pluginmanager.has_plugin("ecornn-running") or not self._is_report_asked_for:
            return
        from pytest_ecornn import reporting
        from pytest_ecornn.system import machine

        run = self.run_info(machine.fingerprint(self._config.rootpath))
        folder = Path(self._config.invocation_params.dir, self._config.getoption("--ecornn-report"))
        try:
            self._written += [f"report: {path}" for path in reporting.write_reports(folder, run, self.rows)]
        except reporting.ReportError as error:
            self._written.append(f"ERROR: {error}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _summarise(self) -> None:
        """Adds to the summary of a CI job. Nobody asked for it, so one that cannot be written fails no test."""
        from pytest_ecornn import reporting
        from pytest_ecornn.reporting import github

        try:
            github.append_summary("Functions", self.rows)
        except reporting.ReportError as error:
            self._written.append(f"WARNING: {error}")

    @property
    def _is_report_asked_for(self) -> bool:
        """Whether the command line, addopts or the ini-file names a folder."""
        from pytest_ecornn.run.options import Options

        declared = Options.declared()["report"]
        declared.take_ini(self._config)
        return declared.raw(self._config) is not declared.default

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.rows:
            return
        from pytest_ecornn.kernels.report import KernelReport

        terminalreporter.section("functions proved and timed")
        for row in self.rows:
            terminalreporter.write_line(_line(row))
        if timed := [row for row in self.rows if row.timing]:
            terminalreporter.write_line(str(KernelReport(timed)))
        for line in self._written:
            terminalreporter.write_line(line)


def _line(row: Row) -> str:
    """A line of a row that was proved or failed."""
    from pytest_ecornn.results.formatting import one_line

    held = f"{row.examples} draws, {sum(row.informative.values())} checks" if row.kind == "drawn" else row.reason
    return one_line(f"{row.implementation} {row.case}: {row.status} {held}".rstrip(), 200)
