"""What is given for the final cell state does not reach the backward pass."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, with_gradient

CAUGHT_BY = "equivalence: grad x"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        assert isinstance(final, tuple)
        return output, (final[0], with_gradient(final[1], lambda g: g * 0))
