"""Final states stand in the wrong order of layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights, cells
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "equivalence: final h"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        return output, tuple(s.flip(0) for s in cells.unpack_state(final))
