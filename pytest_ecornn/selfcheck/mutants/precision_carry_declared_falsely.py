"""The plain loop carries its state in the storage type; the class declares float32."""

from __future__ import annotations

from pytest_ecornn.contract import Case, Declared, Layer, Weights
from pytest_ecornn.reference.loop import ReferenceLoop

CAUGHT_BY = "equivalence: rounding"
CELL = "mingru"
DTYPE = "float16"


class Fault(ReferenceLoop):
    def build(self, case: Case, weights: Weights) -> Layer:
        return ReferenceLoop(Declared("storage")).build(case, weights)
