"""Gates wait for the backward pass in 16 bits, and float32 is declared."""

from __future__ import annotations

from pytest_ecornn.contract import Case, Declared, Layer, Weights
from pytest_ecornn.reference.loop import ReferenceLoop

CAUGHT_BY = "equivalence: rounding"
DTYPE = "float16"


class Fault(ReferenceLoop):
    def build(self, case: Case, weights: Weights) -> Layer:
        return ReferenceLoop(Declared("float32", saved_gates="storage")).build(case, weights)
