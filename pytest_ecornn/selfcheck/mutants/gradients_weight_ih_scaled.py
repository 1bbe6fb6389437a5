"""The gradient of the input's weight is one part in a hundred too large."""

from __future__ import annotations

from pytest_ecornn.contract import Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_gradient

CAUGHT_BY = "equivalence: grad weight_ih"
CELL = "gru"


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        return {n: with_gradient(p, lambda g: g * 1.01) if n == "weight_ih" else p for n, p in found.items()}
