"""Whether a backward pass is needed is asked of the weights alone: where all are frozen, the output is cut from the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: gradients_required"
CELL = "gru"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        wants = not weights or any(weight.requires_grad for weight in weights.values())
        with torch.set_grad_enabled(wants and torch.is_grad_enabled()):
            return layer(x, state, lengths)
