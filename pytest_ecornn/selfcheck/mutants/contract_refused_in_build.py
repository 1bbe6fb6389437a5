"""Two directions are refused in `build`, which this implementation must support."""

from __future__ import annotations

from pytest_ecornn.contract import Case, Layer, Unsupported, Weights
from pytest_ecornn.reference.loop import ReferenceLoop

CAUGHT_BY = "required"
STANDS_FOR = "sequential"


class Fault(ReferenceLoop):
    def build(self, case: Case, weights: Weights) -> Layer:
        if case.bidirectional:
            raise Unsupported("runs one direction")
        return super().build(case, weights)
