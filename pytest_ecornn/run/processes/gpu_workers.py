"""GPUs of a host under pytest-xdist: each worker has one of them and its share of the cores; one worker of each GPU times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pytest_ecornn.run.processes.proof_workers import most_workers
from pytest_ecornn.system.gpus.host_share import HostShare, gpus_of_one_kind

if TYPE_CHECKING:
    from pytest_ecornn.run.processes.gpu_scheduling import GpuScheduling

_DEVICE = "cuda"  # of cases that any GPU may run


class GpuWorkers:
    """pytest-xdist's hooks in the process that hands out rows.

    devices: of all cases. is_timed: whether a test, by its id, times.
    """

    def __init__(self, devices: Sequence[str], is_timed: Callable[[str], bool]):
        self._devices, self._is_timed = devices, is_timed
        self._timing_specs: list[Any] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        """Gives workers of this host their GPUs, before they start; a worker in the place of a dead one has its GPU."""
        local = [spec for spec in specs if spec.popen and not spec.ray_host]
        gpus = gpus_of_one_kind() if len(local) > 1 and set(self._devices) == {_DEVICE} else []
        count = min(len(gpus), len(local))
        self._timing_specs = local[:count] if len(local) == len(specs) else []
        if count > 1:
            for number, spec in enumerate(local):
                spec.env |= HostShare(number % count + 1, count).environment(gpus)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> GpuScheduling | None:
        """Returns `GpuScheduling` where workers share GPUs, unless the user chose another than pytest-xdist's usual one."""
        if not self._timing_specs or config.getoption("dist") != "load":
            return None
        from pytest_ecornn.run.processes.gpu_scheduling import GpuScheduling

        return GpuScheduling(config, log, self._timing_specs, self._is_timed)


def auto_worker_count(devices: Sequence[str]) -> int | None:
    """Returns how many workers `-n auto` starts: some for each GPU; None where pytest-xdist is to decide.

    Proofs keep all of them busy. One of each GPU times.
    """
    gpus = len(gpus_of_one_kind()) if set(devices) == {_DEVICE} else 0
    return gpus * max(1, most_workers(gpu_bytes(), gpus)) if gpus else None


def gpu_bytes() -> int:
    """Returns the size of the first GPU's memory, in bytes."""
    return int(torch.cuda.get_device_properties(0).total_memory)
