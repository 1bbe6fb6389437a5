"""The final state of a float64 layer has been through float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, through

CAUGHT_BY = "equivalence: rounding"
CELL = "gru"
DTYPE = "float64"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        assert isinstance(final, Tensor)
        return output, through(final, torch.float32)
