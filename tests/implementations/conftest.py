"""scan_gpu's and scan_gpu_log's kernels on a CPU, a thread a block."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_ecornn.implementations.scan_gpu import ops as scan_gpu_ops
from pytest_ecornn.implementations.scan_gpu_log import ops as scan_gpu_log_ops
from tests.simulator.kernels_on_cpu import KernelOnCpu, running_scans
from tests.simulator.launch_memo import remembering_addresses


@pytest.fixture
def kernels_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (scan_gpu_ops, scan_gpu_log_ops):
        monkeypatch.setattr(module, "Kernel", KernelOnCpu)
    with remembering_addresses():
        yield


@pytest.fixture
def ops_on_cpu() -> Iterator[None]:
    with running_scans():
        yield
