"""Which worker of pytest-xdist runs which row where workers share GPUs: all prove, one of each GPU times.

A proof is mostly Python and compilers, so several workers prove on one GPU. Timed rows take turns on it: in one worker a case's
baselines are proven and probed once, and nobody waits for its GPU.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from pytest_ecornn.run.processes.controller import CrashAwareScheduling, XdistController
from pytest_ecornn.run.suites import is_timed_node


class GpuScheduling(CrashAwareScheduling):
    """Timed rows go to the workers of `timing_specs` alone, while one of these lives.

    Rows are handed out in their order, in which proofs are first.
    """

    def __init__(self, config: pytest.Config, log: Any, controller: XdistController, timing_specs: Collection[Any]):
        super().__init__(config, log, controller)
        self._timing_specs = timing_specs

    def schedule(self) -> None:
        """Tops up each worker, or ends it: pytest-xdist runs a worker's last row only when another or the end follows."""
        super().schedule()
        for node in self.nodes:
            if len(self.node2pending[node]) < 2:
                self.check_schedule(node)

    def _send_tests(self, node: Any, num: int) -> None:
        rows = self._rows_for(node)
        if sent := rows[:num]:
            self.pending[:] = [row for row in self.pending if row not in sent]
            self.node2pending[node].extend(sent)
            node.send_runtest_some(sent)
        if len(rows) <= num:
            node.shutdown()

    def _rows_for(self, node: Any) -> list[int]:
        """Pending rows that the worker may run, in order."""
        timing_nodes = self._timing_nodes()
        if not timing_nodes or node in timing_nodes:
            return list(self.pending)
        collection = self.collection or []
        return [row for row in self.pending if not is_timed_node(collection[row])]

    def _timing_nodes(self) -> list[Any]:
        """Living workers that time; a worker in the place of a dead one has its spec."""
        return [node for node in self.nodes if any(node.gateway.spec is spec for spec in self._timing_specs)]
