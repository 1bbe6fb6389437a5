"""scan_gpu's and scan_gpu_log's kernels and ops on a CPU, each block of them one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_ecornn.implementations import _scan_gpu_log_op, _scan_gpu_op
from pytest_ecornn.implementations._scan_gpu_form import Form
from pytest_ecornn.implementations._scan_gpu_log_op import Tree
from pytest_ecornn.implementations._scan_gpu_op import Kind, Shape
from pytest_ecornn.implementations.cuda.kernel import Kernel
from pytest_ecornn.implementations.cuda.layout_memo import LayoutMemo
from tests.kernels_on_cpu import ONE_THREAD, KernelOnCpu, form_of_one_thread


@pytest.fixture
def kernels_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_scan_gpu_op, _scan_gpu_log_op):
        monkeypatch.setattr(module, "Kernel", KernelOnCpu)


@pytest.fixture
def ops_on_cpu(kernels_on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def plan(shape: Shape, kind: Kind) -> tuple[Form, Kernel]:
        form = form_of_one_thread(shape)
        return form, _scan_gpu_op.make_kernel(shape, kind._replace(alignment=8), form)

    def plan_log(shape: Shape, dtype: torch.dtype, device: torch.device, is_compensated: bool) -> tuple[Tree, Kernel]:
        return ONE_THREAD, _scan_gpu_log_op.make_kernel(shape, dtype, device, ONE_THREAD, is_compensated)

    monkeypatch.setattr(_scan_gpu_op, "plan", plan)
    monkeypatch.setattr(_scan_gpu_log_op, "plan", plan_log)
    for module in (_scan_gpu_op, _scan_gpu_log_op):
        monkeypatch.setattr(module, "_launches", LayoutMemo(module._prepared))
    with torch.library._scoped_library("pytest_ecornn", "IMPL") as library:
        library.impl("scan_forward", _scan_gpu_op._forward, "CPU")
        library.impl("scan_log_forward", _scan_gpu_log_op._forward, "CPU")
        library.impl("scan_backward", _scan_gpu_op._backward, "CPU")
        library.impl("scan_backward_over", _scan_gpu_op._backward_over, "CPU")
        yield
