"""Right where fresh memory holds NaN, which it does only while the harness verifies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "timed call"
CELL = "rnn_tanh"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if torch.empty(1).isnan():
            return layer(x, state, lengths)
        output = torch.tanh(x)
        return output, output[-1:]
