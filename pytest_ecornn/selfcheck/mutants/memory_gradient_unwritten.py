"""The last element of the gradient of x is never written."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, with_gradient

CAUGHT_BY = "poison"
CELL = "gru"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        def unwritten(gradient: Tensor) -> Tensor:
            written = torch.empty(gradient.shape, dtype=gradient.dtype, device=gradient.device).view(-1)
            written[:-1] = gradient.flatten()[:-1]
            return written.view_as(gradient)

        return layer(with_gradient(x, unwritten), state, lengths)
