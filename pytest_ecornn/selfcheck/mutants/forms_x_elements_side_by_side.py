"""Elements of a row of x are taken to lie side by side, whatever the stride between them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundScan

CAUGHT_BY = "property: layouts"
CELL = "mingru"


class Fault(AroundScan):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        return layer(x.as_strided(x.shape, (*x.stride()[:2], 1)), state, lengths)
