"""A recurrent weight is scaled in its own memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "unchanged"
CELL = "rnn_relu"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        result = layer(x, state, lengths)
        weights["weight_hh_l0"].data.mul_(1.5)
        return result
