"""The gradient of the input's bias is doubled, as where both biases share an accumulator."""

from __future__ import annotations

from pytest_ecornn.contract import Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_gradient

CAUGHT_BY = "equivalence: grad bias_ih"


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        return {n: with_gradient(p, lambda g: g * 2) if n == "bias_ih" else p for n, p in found.items()}
