"""The initial state is copied as so many elements from its first on, as if it were contiguous."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, read_in_memory_order

CAUGHT_BY = "property: layouts"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if isinstance(state, tuple):
            state = tuple(read_in_memory_order(one) for one in state)
        return layer(x, state, lengths)
