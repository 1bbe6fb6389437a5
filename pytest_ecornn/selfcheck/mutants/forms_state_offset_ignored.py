"""The initial state is read from the start of its memory, wherever it begins."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: layouts"
CELL = "gru"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if isinstance(state, Tensor):
            state = state.as_strided(state.shape, state.stride(), 0)
        return layer(x, state, lengths)
