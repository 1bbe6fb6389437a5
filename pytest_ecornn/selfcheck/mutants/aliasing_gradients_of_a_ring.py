"""Gradients of x lie in two buffers that take turns, as those of an accumulation over micro-batches."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.selfcheck._function_layers import Gradients, Inputs, Recomputed

CAUGHT_BY = "property: fresh_results"
CELL = "rnn_tanh"


class Fault(Recomputed):
    def __init__(self) -> None:
        super().__init__()
        self._ring: list[Tensor] = []

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        first, *others = gradients
        if first is None:
            return gradients
        buffer = self._ring.pop(0) if len(self._ring) == 2 else torch.empty_like(first)
        self._ring.append(buffer)
        return buffer.copy_(first).view_as(first), *others
