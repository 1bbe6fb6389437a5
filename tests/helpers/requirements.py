"""What a test needs of the machine that it runs on."""

from __future__ import annotations

import shutil

import pytest
import torch

from pytest_ecornn.implementations._cuda import compile as compiler
from pytest_ecornn.implementations._cuda.compile import HOPPER

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
needs_nvrtc = pytest.mark.skipif(
    compiler.nvrtc_unavailable_reason() is not None, reason=str(compiler.nvrtc_unavailable_reason())
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != HOPPER, reason="no Hopper GPU on this machine"
)
HAS_BFLOAT16_LSTM = torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # on a CPU
needs_bfloat16_lstm = pytest.mark.skipif(not HAS_BFLOAT16_LSTM, reason="torch.nn.LSTM needs AVX-512 for bfloat16")
