"""Which calls of RNN, LSTM and GRU fused_cpu runs, where a module names it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from pytest_ecornn.contract import DTYPES, cells
from pytest_ecornn.nn.calls import missing_transform
from pytest_ecornn.reference.precision import is_autocast

FUSED = "fused_cpu"


def refusal_on_cpu(module: Any, input: Any, rows: Tensor, hx: Any) -> str | None:
    """Why fused_cpu does not run a call, or None. rows: the input, or a PackedSequence's data."""
    if not rows.is_cpu:
        return f"expected an input on a CPU, got {rows.device}"
    if missing := missing_transform():
        return f"the kernels have {missing}"
    if module.proj_size:
        return f"expected proj_size 0, got {module.proj_size}: the kernels do not project states"
    if isinstance(input, PackedSequence):
        return "expected a padded input and lengths, got a PackedSequence"
    if is_autocast(rows.device):
        return "the kernels have no autocast on a CPU"
    if torch.compiler.is_compiling():
        return "torch.compile does not trace the kernels' calls"
    dtypes = [rows.dtype, *(state.dtype for state in cells.unpack_state(hx)), *(one.dtype for one in module._flat_weights)]
    if len(set(dtypes)) > 1:
        return f"expected one dtype, got {', '.join(sorted({str(dtype) for dtype in dtypes}))}"
    name = str(rows.dtype).removeprefix("torch.")
    return None if name in DTYPES else f"expected a dtype of {', '.join(DTYPES)}, got {name}"
