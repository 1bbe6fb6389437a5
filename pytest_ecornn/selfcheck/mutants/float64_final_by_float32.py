"""Final states are stored in a buffer of float32; the output is not."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights, cells
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "equivalence: rounding"
DTYPE = "float64"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        return output, tuple(one.float().to(one.dtype) for one in cells.unpack_state(final))
