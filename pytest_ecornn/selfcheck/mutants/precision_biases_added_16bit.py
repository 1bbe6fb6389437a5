"""The two biases are added in 16 bits when a call begins."""

from __future__ import annotations

from pytest_ecornn.contract import Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, through

CAUGHT_BY = "equivalence: rounding"
DTYPE = "bfloat16"


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        if "bias_ih" in found and "bias_hh" in found:
            both = found["bias_ih"] + found["bias_hh"]
            found["bias_hh"] = through(both, self.dtype) - found["bias_ih"]
        return found
