"""Every other call rounds its output to a neighbour, and bit-equal repeats are claimed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: repeats"
CELL = "gru"


class Fault(AroundLoop):
    _calls = 0

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        self._calls += 1
        if self._calls % 2:
            output.data.mul_(1 + torch.finfo(output.dtype).eps)
        return output, final
