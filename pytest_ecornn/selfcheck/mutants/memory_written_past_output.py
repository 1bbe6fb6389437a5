"""One element behind the output is written, in inference; only where malloc rounds up, so that the heap stays whole."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: guard_bands"
_CHUNK, _HEADER = 16, 8  # bytes of glibc's malloc


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        if output.requires_grad:
            return output, final
        written = torch.empty(output.shape, dtype=output.dtype).copy_(output)
        size = written.numel() * written.element_size()
        if -(size + _HEADER) % _CHUNK >= written.element_size():
            ctypes.memset(written.data_ptr() + size, 0, written.element_size())
        return written, final
