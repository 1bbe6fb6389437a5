"""Which worker of pytest-xdist runs which row where workers share GPUs: all prove, a few of each GPU time.

A proof is mostly Python and compilers, so several workers prove on one GPU. Timed blocks have it alone: while one worker times
a row, the others wait, and they prove their rows' calls together. All rows of a case run in one worker, which proves the case's
baselines once.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from pytest_ecornn.run.processes.controller import CrashAwareScheduling, XdistController
from pytest_ecornn.run.suites import is_timed_node, label_of_node


class GpuScheduling(CrashAwareScheduling):
    """Timed rows go to the workers of `timing_specs` alone, while one of these lives.

    Rows are handed out in their order, in which proofs are first.
    """

    def __init__(self, config: pytest.Config, log: Any, controller: XdistController, timing_specs: Collection[Any]):
        super().__init__(config, log, controller)
        self._timing_specs = timing_specs
        self._timing_nodes_by_case: dict[str, Any] = {}

    def schedule(self) -> None:
        """Tops up each worker, or ends it: pytest-xdist runs a worker's last row only when another or the end follows."""
        super().schedule()
        for node in self.nodes:
            if len(self.node2pending[node]) < 2:
                self.check_schedule(node)

    def _send_tests(self, node: Any, num: int) -> None:
        rows = self._rows_for(node)
        if sent := rows[:num]:
            self._timing_nodes_by_case |= {case: node for row in sent if (case := self._timed_case(row))}
            self.pending[:] = [row for row in self.pending if row not in sent]
            self.node2pending[node].extend(sent)
            node.send_runtest_some(sent)
        if len(rows) <= num:
            node.shutdown()

    def _rows_for(self, node: Any) -> list[int]:
        """Pending rows that the worker may run, in order."""
        timing_nodes = self._timing_nodes()
        if not timing_nodes:
            return list(self.pending)
        others = {case for case, owner in self._timing_nodes_by_case.items() if owner is not node and owner in timing_nodes}
        may_time = node in timing_nodes
        cases = {row: self._timed_case(row) for row in self.pending}
        return [row for row, case in cases.items() if not case or (may_time and case not in others)]

    def _timed_case(self, row: int) -> str:
        """The case of a timed row; empty for a proof."""
        nodeid = (self.collection or [])[row]
        label = label_of_node(nodeid)
        return (label.partition("-")[2] or label) if is_timed_node(nodeid) else ""

    def _timing_nodes(self) -> list[Any]:
        """Living workers that time; a worker in the place of a dead one has its spec."""
        return [node for node in self.nodes if any(node.gateway.spec is spec for spec in self._timing_specs)]
