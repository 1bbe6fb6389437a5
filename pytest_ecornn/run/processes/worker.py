"""pytest's hooks in a worker of pytest-xdist: what it leaves to be read when it dies, when it makes way, and its threads."""

from __future__ import annotations

import faulthandler
from typing import IO, Any

import pytest
import torch

from pytest_ecornn.run.process import WorkerProcess, worker_input
from pytest_ecornn.run.session import RunSession
from pytest_ecornn.run.suites import is_timed_node
from pytest_ecornn.system import machine, memory
from pytest_ecornn.system.deadline import Timeout
from pytest_ecornn.system.gpus.host_share import HostShare
from pytest_ecornn.system.last_words import CrashReport


class Worker:
    """Of a worker that is replaced when it dies. stack: the file to which stacks are written."""

    def __init__(self, config: pytest.Config, session: RunSession):
        values = worker_input(config)
        last_words = CrashReport(session.shared_folder, values["workerid"])
        session.process = self._process = WorkerProcess(last_words, values["ecornn_fatal"])
        self.stack = last_words.stack.open("a")

    def pytest_sessionstart(self) -> None:
        faulthandler.enable(self.stack)  # pytest's own would print it and be done

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Any:
        if self._process.is_spoilt:
            self._process.stop()
        return (yield)


class WorkerThreads:
    """Sets torch's threads before each row: its share of the cores for a proof, all cores of the process for a timed row.

    Workers prove side by side; those of one GPU, or of a CPU, time one after the other.
    """

    def __init__(self, config: pytest.Config, share: HostShare | None):
        self._timing = torch.get_num_threads()
        machine.limit_threads_per_worker(config, share.count if share else 1)
        self._proving = torch.get_num_threads()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._proving != self._timing:
            torch.set_num_threads(self._timing if is_timed_node(item.nodeid) else self._proving)


class WorkerLimits:
    """Of an isolated run: they limit the time and the memory of rows. stack: a file for those of a row that takes too long."""

    def __init__(self, config: pytest.Config, session: RunSession, stack: IO[str]):
        self._process, self._timeout = session.process, session.options.timeout
        self._deadline = Timeout(stack)
        session.lock.waiting = self._deadline.paused
        if limit := worker_input(config)["ecornn_memory"]:
            memory.set_memory_limit(limit)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Any:
        """Implementations are asked what they support: one that does not answer must not hold up the run."""
        self._deadline.start(self._timeout, self._process.stop)
        result = yield
        self._deadline.stop()
        return result

    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool:
        """pytest-timeout's method "thread", with a clock that can be stopped."""
        from pytest_timeout import timeout_timer

        self._deadline.start(settings.timeout, lambda: timeout_timer(item, settings))
        item.cancel_timeout = self._deadline.stop  # type: ignore[attr-defined]
        return True
