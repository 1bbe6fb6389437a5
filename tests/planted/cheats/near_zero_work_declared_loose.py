"""Everything is declared as loosely as it can be, and each step sees the input alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.contract import MOST_ACTIVATION_ERROR, Case, Layer, Precision, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "equivalence: output"
CELL = "rnn_tanh"
DTYPE = "bfloat16"


class Cheat(AroundLoop):
    carry: Precision = "storage"
    gate_gradients: Precision = "storage"
    saved_gates: Precision = "storage"
    products: Precision = "storage"
    weight_gradients: Precision = "storage"
    activation_error = MOST_ACTIVATION_ERROR

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output = torch.tanh(linear(x, weights["weight_ih_l0"], weights["bias_ih_l0"] + weights["bias_hh_l0"]))
        return output, output[-1:]
