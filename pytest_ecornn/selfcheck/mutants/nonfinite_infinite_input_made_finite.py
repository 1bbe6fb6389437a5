"""Infinities in x become the largest finite numbers, as nan_to_num makes them; NaN stays."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "equivalence: non-finite"
CELL = "rnn_relu"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        largest = torch.finfo(x.dtype).max
        return layer(x.clamp(-largest, largest), state, lengths)
