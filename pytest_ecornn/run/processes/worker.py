"""pytest's hooks in a worker that is replaced when it dies: what it leaves to be read then, and when it makes way."""

from __future__ import annotations

import faulthandler
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.run.process import WorkerProcess, worker_input
from pytest_ecornn.run.session import RunSession
from pytest_ecornn.system.last_words import CrashReport


class Worker:
    """stack: the file to which stacks are written."""

    def __init__(self, config: pytest.Config, session: RunSession):
        given = worker_input(config)
        last_words = CrashReport(Path(session.shared_folder), given["workerid"])
        session.process = self._process = WorkerProcess(last_words, given["ecornn_fatal"])
        self.stack = last_words.stack.open("a")

    def pytest_sessionstart(self) -> None:
        faulthandler.enable(self.stack)  # pytest's own would print it and be done

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Any:
        if self._process.is_spoilt:
            self._process.stop()
        return (yield)
