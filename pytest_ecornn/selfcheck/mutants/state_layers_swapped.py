"""The first layer begins at the last layer's state, and the last at the first's."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights, cells
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "equivalence: output"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        return layer(x, tuple(s.flip(0) for s in cells.unpack_state(state)) or None, lengths)
