"""GPUs of a host under pytest-xdist: each worker has one of them and its share of the cores; some workers of each GPU time.

A proof is mostly Python and compilers, so several workers prove on one GPU. Timed blocks have it alone: while one worker times
a row, the others wait, and they prove their rows' calls together. All rows of a case run in one worker, which proves the case's
baselines once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest
import torch

from pytest_ecornn.run.processes.controller import CrashAwareScheduling, XdistController
from pytest_ecornn.run.suites import is_timed_node, label_of_node
from pytest_ecornn.system import machine, memory
from pytest_ecornn.system.gpus.host_share import HostShare, gpus_of_one_kind

_DEVICE = "cuda"  # of cases that any GPU may run
# Workers of a GPU at most, and what each needs of cores, of the host's memory and of the GPU's.
_MAX_WORKERS, _CORES_EACH, _HOST_BYTES_EACH, _GPU_BYTES_EACH = 12, 4 / 3, 4 * 2**30, 3 * 2**30
# Workers of a GPU that time at most: while one does, the others wait, so more would gain little.
_TIMING_WORKERS = 3


class GpuWorkers:
    """pytest-xdist's hooks in the process that hands out rows. devices: of all cases."""

    def __init__(self, devices: Sequence[str], controller: XdistController):
        self._devices, self._controller = devices, controller
        self._timing_specs: list[Any] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        """Gives workers of this host their GPUs, before they start; a worker in the place of a dead one has its GPU."""
        local = [spec for spec in specs if spec.popen and not spec.ray_host]
        if len(local) < 2:
            return
        gpus = gpus_of_one_kind() if set(self._devices) == {_DEVICE} else []
        count = min(len(gpus), len(local))
        if count > 1:
            for number, spec in enumerate(local):
                spec.env |= HostShare(number % count + 1, count).environment(gpus)
        if len(local) == len(specs):
            self._timing_specs = local[: count * _TIMING_WORKERS or 1]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> GpuScheduling | None:
        """Returns `GpuScheduling` where workers share GPUs, unless the user chose another than pytest-xdist's usual one."""
        if not self._timing_specs or config.getoption("dist") != "load":
            return None
        return GpuScheduling(config, log, self._controller, self._timing_specs)


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
        # Living workers that time; a worker in the place of a dead one has its spec.
        timing_nodes = [node for node in self.nodes if any(node.gateway.spec is spec for spec in self._timing_specs)]
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


def uses_gpus(devices: Iterable[str]) -> bool:
    return any(device.startswith(_DEVICE) for device in devices)


def auto_worker_count(devices: Sequence[str]) -> int | None:
    """Returns how many workers `-n auto` starts: some for each GPU; None where pytest-xdist is to decide.

    Proofs keep all of them busy. Some of each GPU time; where cases name a GPU or run on the CPU too, one in all.
    """
    gpus = gpus_of_one_kind() if uses_gpus(devices) else []
    if not gpus:
        return None
    shares = len(gpus) if set(devices) == {_DEVICE} else 1
    on_host = (memory.available_bytes() or 0) // _HOST_BYTES_EACH // shares
    on_cores = int(machine.usable_cores() / _CORES_EACH) // shares
    return shares * max(1, min(_MAX_WORKERS, on_cores, on_host, gpu_bytes() // _GPU_BYTES_EACH))


def gpu_bytes() -> int:
    """Returns the size of the first GPU's memory, in bytes."""
    return int(torch.cuda.get_device_properties(0).total_memory)
