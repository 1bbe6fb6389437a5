"""pytest's hooks in the process that hands rows out to workers: when one dies, whose fault it was, and which row it costs."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from functools import cached_property
from typing import Any

import pytest
from xdist.scheduler import LoadScheduling

from pytest_ecornn.results.rows import EXPECTED
from pytest_ecornn.run.items.items import CheckItem
from pytest_ecornn.run.session import RunSession
from pytest_ecornn.system import faults, memory
from pytest_ecornn.system.last_words import CrashReport, CurrentWork

# Of what is available; the rest is for the controller and everyone else.
_SHARE_OF_MEMORY = 0.8
# Workers that die in a row without having begun a row: what kills them is not one.
_MAX_IDLE_DEATHS = 3
_SECONDS_TO_EXIT = 5.0


class XdistController:
    def __init__(self, session: RunSession):
        self._session = session
        self._begun, self._reported = set[str](), set[str]()
        self._fatal: dict[str, str] = {}
        self._lost: dict[str, str] = {}
        self._idle_deaths, self._is_interrupted = 0, False

    def pytest_configure_node(self, node: Any) -> None:
        count = node.workerinput["workercount"]
        node.workerinput["ecornn_fatal"] = dict(self._fatal)
        node.workerinput["ecornn_memory"] = self._session.options.memory_bytes or self._available_bytes // count

    @cached_property
    def _available_bytes(self) -> int:
        return int((memory.available_bytes() or 0) * _SHARE_OF_MEMORY)

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadScheduling:
        return CrashAwareScheduling(config, log, self)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun.add(nodeid)
        self._idle_deaths = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            self._reported.add(report.nodeid)

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._is_interrupted = error == "keyboard-interrupt"
        self._idle_deaths += bool(error) and not self._died_of_asking(node)
        if self._idle_deaths > _MAX_IDLE_DEATHS:
            reason = (
                f"{_MAX_IDLE_DEATHS} workers died before they began a row; the last: {faults.exit_reason(_exit_status(node))}"
            )
            pytest.exit(reason, pytest.ExitCode.INTERNAL_ERROR)

    def _died_of_asking(self, node: Any) -> bool:
        """Whether an implementation ended the worker by being asked what it supports: the next worker does not ask it."""
        words = CrashReport(self._session.shared_folder, node.gateway.id).read()
        return bool(words.implementation) and not words.case

    def is_culprit(self, node: Any, nodeid: str) -> bool:
        """Whether the dead worker's death is that of the row it was at, and not its baseline's or an earlier row's."""
        if nodeid in self._reported or nodeid not in self._begun:
            return False
        left = CrashReport(self._session.shared_folder, node.gateway.id)
        words, item = left.read(), self._session.item(nodeid)
        if item is None:
            return True
        if words.rerun or self._is_interrupted:
            return False
        end = words.end or self._exit_of(node, left)
        if culprit := self._session.implementations.get(words.implementation):
            end += left.crash_location(culprit.path)
        self._fatal[f"{words.implementation}-{words.case}"] = end
        if words.implementation not in ("", item.implementation.name):
            return False
        self._lost[nodeid] = self._reason(item, words, end)
        return True

    def should_rerun(self, nodeid: str) -> bool:
        """Whether a row is still to be run, that a worker was at, or about to be at, when it died."""
        self._begun.discard(nodeid)
        return nodeid not in self._reported

    def _exit_of(self, node: Any, left: CrashReport) -> str:
        status = _exit_status(node)
        return f"did not finish within {self._session.options.timeout:g} s" if left.timed_out else faults.exit_reason(status)

    def _reason(self, item: CheckItem, words: CurrentWork, end: str) -> str:
        case = words.case or str(item.case)
        end += f", while it took turns with {words.beside}" if words.beside else ""
        return f"{item.implementation.name} on {case}: {end}\nagain: {item.rerun(case, words.is_timed)} --ecornn-isolate"

    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        if (reason := self._lost.get(crashitem)) and (item := self._session.item(crashitem)):
            report.longrepr, report.location = reason, (*report.location[:2], crashitem.rpartition("::")[2])
            row = item.empty_row()
            row.status, row.reason = "failed", reason
            item.expect(row)
            if row.reason.startswith(EXPECTED):
                report.outcome, report.wasxfail = "skipped", row.reason.partition("\n")[0]
            report.ecornn_row = row.as_dict()


class CrashAwareScheduling(LoadScheduling):  # type: ignore[misc]
    """pytest-xdist's own, save for which row a dead worker costs."""

    def __init__(self, config: pytest.Config, log: Any, controller: XdistController):
        super().__init__(config, log)
        self._controller = controller

    def remove_node(self, node: Any) -> str | None:
        nodeid: str | None = super().remove_node(node)
        self.pending.sort()  # what the worker had before it takes its place again
        if nodeid is None or self._controller.is_culprit(node, nodeid):
            return nodeid
        if self._controller.should_rerun(nodeid):
            self.mark_test_pending(nodeid)
        return None


def _exit_status(node: Any) -> int | None:
    """Exit status of a worker that has broken off; None if it runs elsewhere or is killed. execnet has no public API for it."""
    process: subprocess.Popen[bytes] | None = getattr(getattr(node.gateway, "_io", None), "popen", None)
    if process is None:
        return None
    try:
        return process.wait(_SECONDS_TO_EXIT)
    except subprocess.TimeoutExpired:
        process.kill()
        return None


def ignore_closed_channel(node: Any) -> None:
    """Drops what is sent to `node` once its channel is closed, whichever scheduler sends it.

    pytest-xdist raises OSError there, an internal error that ends the run, where a worker dies before its death is handled.
    Dropped rows stay in the node's queue. The scheduler hands them on when it removes the node.
    """
    send = node.sendcommand

    def sendcommand(name: str, **arguments: object) -> None:
        with suppress(OSError):
            send(name, **arguments)

    node.sendcommand = sendcommand
