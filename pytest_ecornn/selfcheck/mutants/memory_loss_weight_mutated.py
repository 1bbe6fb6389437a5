"""The backward pass scales the gradient it was given in its own memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, with_gradient

CAUGHT_BY = "unchanged"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        return with_gradient(output, self._doubled), final

    def _doubled(self, gradient: Tensor) -> Tensor:
        doubled = gradient * 2
        gradient.data.copy_(doubled)
        return doubled / 2
