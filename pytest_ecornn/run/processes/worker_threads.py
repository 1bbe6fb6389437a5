"""torch's threads in a worker of pytest-xdist: its share of the cores in a proof, all cores of the process in a timed row."""

from __future__ import annotations

import pytest
import torch

from pytest_ecornn.run.suites import is_timed_node
from pytest_ecornn.system import machine
from pytest_ecornn.system.gpus.host_share import HostShare


class WorkerThreads:
    """Sets the threads before each row. Workers prove side by side; those of one GPU, or of a CPU, time one after the other."""

    def __init__(self, config: pytest.Config, share: HostShare | None):
        self._timing = torch.get_num_threads()
        machine.limit_threads_per_worker(config, share.count if share else 1)
        self._proving = torch.get_num_threads()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._proving != self._timing:
            torch.set_num_threads(self._timing if is_timed_node(item.nodeid) else self._proving)
