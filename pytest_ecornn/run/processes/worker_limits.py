"""pytest's hooks in a worker of an isolated run that limit the time and the memory of its rows."""

from __future__ import annotations

from typing import IO, Any

import pytest
from pytest_timeout import timeout_timer

from pytest_ecornn.run.process import worker_input
from pytest_ecornn.run.session import RunSession
from pytest_ecornn.system import memory
from pytest_ecornn.system.deadline import Timeout


class WorkerLimits:
    """stack: a file for the stacks of a row that takes too long."""

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
        self._deadline.start(settings.timeout, lambda: timeout_timer(item, settings))
        item.cancel_timeout = self._deadline.stop  # type: ignore[attr-defined]
        return True
