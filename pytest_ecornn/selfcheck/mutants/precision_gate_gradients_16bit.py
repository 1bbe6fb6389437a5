"""The gates' gradients lie in 16 bits between the backward steps, and float32 is declared."""

from __future__ import annotations

from pytest_ecornn.contract import Case, Declared, Layer, Weights
from pytest_ecornn.reference.loop import ReferenceLoop

CAUGHT_BY = "equivalence: rounding"
CELL = "gru"
DTYPE = "bfloat16"


class Fault(ReferenceLoop):
    def build(self, case: Case, weights: Weights) -> Layer:
        return ReferenceLoop(Declared("float32", gate_gradients="storage")).build(case, weights)
