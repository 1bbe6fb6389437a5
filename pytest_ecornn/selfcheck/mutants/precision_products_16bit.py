"""Products are rounded to 16 bits before they are added, and float32 is declared."""

from __future__ import annotations

from pytest_ecornn.contract import Case, Declared, Layer, Weights
from pytest_ecornn.reference.loop import Sequential

CAUGHT_BY = "equivalence: rounding"
DTYPE = "bfloat16"


class Fault(Sequential):
    def build(self, case: Case, weights: Weights) -> Layer:
        return Sequential(Declared("float32", products="storage")).build(case, weights)
