"""scan_gpu's and scan_gpu_log's kernels on a CPU, a thread a block."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_ecornn.implementations.scan_gpu import ops as scan_gpu_ops
from pytest_ecornn.implementations.scan_gpu_log import ops as scan_gpu_log_ops
from tests.simulator.kernels_on_cpu import KernelOnCpu, running_scans


@pytest.fixture
def kernels_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (scan_gpu_ops, scan_gpu_log_ops):
        monkeypatch.setattr(module, "Kernel", KernelOnCpu)


@pytest.fixture
def ops_on_cpu() -> Iterator[None]:
    with running_scans():
        yield
