"""An index into x wraps around at 4,096 elements, as one of 32 bits does at four thousand million."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "equivalence: output"
CELL = "gru"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        index = torch.arange(x.numel(), device=x.device) % 4096
        return layer(x.reshape(-1)[index].view(x.shape), state, lengths)
