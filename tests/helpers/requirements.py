"""What a test needs of the machine that it runs on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_ecornn.implementations._cuda import compile as compiler
from pytest_ecornn.implementations._cuda.compile import HOPPER

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
needs_nvrtc = pytest.mark.skipif(
    compiler.nvrtc_unavailable_reason() is not None, reason=str(compiler.nvrtc_unavailable_reason())
)
CAPABILITY = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
needs_gpu = pytest.mark.skipif(CAPABILITY == (0, 0), reason="no CUDA device on this machine")
needs_ampere = pytest.mark.skipif(CAPABILITY < (8, 0), reason="no GPU of compute capability 8.0")
needs_hopper = pytest.mark.skipif(CAPABILITY != HOPPER, reason="no Hopper GPU on this machine")
OF_GPUS = [one.mark for one in (needs_gpu, needs_ampere, needs_hopper)]
HAS_BFLOAT16_LSTM = torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # on a CPU
needs_bfloat16_lstm = pytest.mark.skipif(not HAS_BFLOAT16_LSTM, reason="torch.nn.LSTM needs AVX-512 for bfloat16")


def on_simulator(*fixtures: str) -> Callable[[Callable[..., None]], Any]:
    """Marks a test that runs kernels on a CPU, as these fixtures have it."""
    return lambda test: needs_compiler(pytest.mark.usefixtures(*fixtures)(test))


def lacks_its_gpu(test: object) -> bool:
    """Whether a test function can only skip, for want of a GPU."""
    return any(mark in OF_GPUS and mark.args[0] for mark in getattr(test, "pytestmark", []))
