"""Judgement of dead workers on other hosts: a worker that was lost with its host does not cost its row."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pytest_ecornn.results import formatting
from pytest_ecornn.run.cluster.cluster_workers import host_of, is_host_lost
from pytest_ecornn.run.processes.controller import XdistController
from pytest_ecornn.run.session import RunSession
from pytest_ecornn.system.last_words import CrashReport

# Hosts that may be lost at one row: then it is the row that costs them, as by using up their memory.
_MAX_HOSTS_LOST = 3


class ClusterController(XdistController):
    """pytest's hooks in the process that hands rows out to hosts."""

    def __init__(self, session: RunSession):
        super().__init__(session)
        self._lost_at = Counter[str]()

    @pytest.hookimpl(trylast=True)
    def pytest_configure_node(self, node: Any) -> None:
        super().pytest_configure_node(node)
        host, options = host_of(node), self._session.options
        sharers = host.place.sharers if options.bench or host.place.gpus else max(host.place.sharers, host.info.cores)
        node.workerinput["workercount"] = sharers  # by which a worker divides its host's cores
        node.workerinput["ecornn_shared"] = host.info.shared
        node.workerinput["ecornn_memory"] = options.memory_bytes or host.place.memory

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if not is_host_lost(node):
            super().pytest_testnodedown(node, error)

    def is_culprit(self, node: Any, nodeid: str) -> bool:
        """Whether the row ended its worker. The third host that is lost at it is its fault."""
        if is_host_lost(node):
            self._lost_at[nodeid] += 1
            if self._lost_at[nodeid] < _MAX_HOSTS_LOST:
                return False
        return super().is_culprit(node, nodeid)

    def _exit_of(self, node: Any, left: CrashReport) -> str:
        if is_host_lost(node):
            return f"was lost with its host {formatting.count(_MAX_HOSTS_LOST, 'time')}"
        return super()._exit_of(node, left)
