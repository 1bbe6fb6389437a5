"""All GPUs of a host under pytest-xdist: each worker has one of them, and its share of the cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_ecornn.run.processes.proof_workers import CORES_EACH, HOST_BYTES_EACH, MAX_WORKERS
from pytest_ecornn.system import machine, memory
from pytest_ecornn.system.gpus.host_share import HostShare, gpus_of_one_kind

_DEVICE = "cuda"  # of cases that any GPU may run


class GpuWorkers:
    """pytest-xdist's hooks in the process that hands out rows. devices: of all cases."""

    def __init__(self, devices: Sequence[str]):
        self._devices = devices

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        """Gives workers of this host their GPUs, before they start; a worker in the place of a dead one has its GPU."""
        local = [spec for spec in specs if spec.popen and not spec.ray_host]
        gpus = gpus_of_one_kind() if len(local) > 1 and set(self._devices) == {_DEVICE} else []
        count = min(len(gpus), len(local))
        if count > 1:
            for number, spec in enumerate(local):
                spec.env |= HostShare(number % count + 1, count).environment(gpus)


def auto_worker_count(devices: Sequence[str]) -> int | None:
    """Returns how many workers `-n auto` starts: some for each of several GPUs; None where pytest-xdist is to decide.

    Verification keeps all of them busy. They time one at a time on each GPU.
    """
    gpus = len(gpus_of_one_kind()) if set(devices) == {_DEVICE} else 0
    if gpus < 2:
        return None
    on_cores, on_host = int(machine.usable_cores() / CORES_EACH), (memory.available_bytes() or 0) // HOST_BYTES_EACH
    return gpus * max(1, min(MAX_WORKERS, on_cores // gpus, on_host // gpus))
