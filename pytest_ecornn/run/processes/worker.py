"""pytest's hooks in a worker of an isolated run: its limits, what it leaves to be read should it die, and when it makes way."""

from __future__ import annotations

import faulthandler
from pathlib import Path
from typing import Any

import pytest
from pytest_timeout import timeout_timer

from pytest_ecornn.run.processes.process import WorkerProcess
from pytest_ecornn.run.session import RunSession
from pytest_ecornn.system import memory
from pytest_ecornn.system.deadline import Timeout
from pytest_ecornn.system.last_words import CrashReport


class Worker:
    def __init__(self, config: pytest.Config, session: RunSession):
        given: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
        last_words = CrashReport(Path(session.shared_folder), given["workerid"])
        session.process = self._process = WorkerProcess(last_words, given["ecornn_fatal"])
        self._stack = last_words.stack.open("a")
        self._deadline, self._timeout = Timeout(self._stack), config.getoption("--ecornn-timeout")
        session.lock.waiting = self._deadline.paused
        if given["ecornn_memory"]:
            memory.set_memory_limit(given["ecornn_memory"])

    def pytest_sessionstart(self) -> None:
        faulthandler.enable(self._stack)  # pytest's own would print it and be done

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Any:
        """Implementations are asked what they support: one that does not answer must not hold up the run."""
        self._deadline.start(self._timeout, self._process.stop)
        result = yield
        self._deadline.stop()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Any:
        if self._process.is_spoilt:
            self._process.stop()
        return (yield)

    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool:
        """pytest-timeout's method "thread", with a clock that can be stopped."""
        self._deadline.start(settings.timeout, lambda: timeout_timer(item, settings))
        item.cancel_timeout = self._deadline.stop  # type: ignore[attr-defined]
        return True
