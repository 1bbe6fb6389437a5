"""A call asks for a deeper stack of every thread of the GPU, which takes memory from all kernels that come later."""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: globals_unchanged"
CELL = "gru"
DEVICE = "cuda"
_CU_LIMIT_STACK_SIZE, _BYTES = 0, 8192


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        result = layer(x, state, lengths)
        ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(_CU_LIMIT_STACK_SIZE, ctypes.c_size_t(_BYTES))
        return result
