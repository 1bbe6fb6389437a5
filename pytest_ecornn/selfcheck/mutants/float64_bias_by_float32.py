"""The biases are added in float32 once, as the layer's one bias, and that is widened."""

from __future__ import annotations

from pytest_ecornn.contract import Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: rounding"
DTYPE = "float64"


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        return {name: one.float().to(one.dtype) if name.startswith("bias") else one for name, one in found.items()}
