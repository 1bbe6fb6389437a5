"""Kernels on a CPU: scans a thread a block, others on clusters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from pytest_ecornn.implementations.persistent_gpu.input_gemm import gemm_3xtf32
from pytest_ecornn.implementations.scan_gpu import layer
from pytest_ecornn.implementations.scan_gpu import ops as scan_gpu_ops
from pytest_ecornn.implementations.scan_gpu_log import ops as scan_gpu_log_ops
from tests.helpers.nn_kernels import by_kernels  # noqa: F401 - a fixture
from tests.helpers.persistent import on_cpu  # noqa: F401 - a fixture
from tests.simulator.clusters_on_cpu import SHARED, running_kernels
from tests.simulator.kernels_on_cpu import running_scans


@pytest.fixture
def kernels_on_cpu() -> Iterator[None]:
    """Those of one launch beside a layer's."""
    with running_kernels(gemm_3xtf32, *SHARED):
        yield


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an op has room for is NaN until it is written."""

    def new_empty(self: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        return uninitialised(self, *shape, **options).fill_(torch.nan)

    uninitialised = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)


@pytest.fixture
def ops_on_cpu(poisoned: None) -> Iterator[None]:
    with running_scans():
        yield


@pytest.fixture
def scans_on_cpu(ops_on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of scan_gpu and scan_gpu_log too."""
    monkeypatch.setattr(layer, "with_index", torch.device)
    monkeypatch.setattr(torch.cuda, "device", lambda of: nullcontext())
    for module in (scan_gpu_ops, scan_gpu_log_ops):
        monkeypatch.setattr(module, "describe", lambda *of: "")
