"""The scan's backward pass ends before the first step: its gradient stays zero."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundScan, with_gradient

CAUGHT_BY = "equivalence: grad x"
CELL = "mingru"


class Fault(AroundScan):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        def shortened(gradient: Tensor) -> Tensor:
            gradient = gradient.clone()
            gradient.select(1 if case.batch_first else 0, 0).zero_()
            return gradient

        return layer(with_gradient(x, shortened), state, lengths)
