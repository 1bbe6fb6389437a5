"""Lengths are read as B integers from the first on, as if they were contiguous."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, read_in_memory_order

CAUGHT_BY = "property: layouts"
CELL = "rnn_tanh"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        return layer(x, state, None if lengths is None else read_in_memory_order(lengths).clamp(1, case.steps))
