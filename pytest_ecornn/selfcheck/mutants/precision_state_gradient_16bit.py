"""The gradient of the state crosses backward steps in 16 bits, and float32 is declared."""

from __future__ import annotations

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, through, with_gradient

CAUGHT_BY = "equivalence: rounding"
CELL = "mingru"
DTYPE = "bfloat16"


class Fault(Loop):
    def carried(self, state: GateTensors) -> GateTensors:
        return tuple(with_gradient(s, lambda gradient: through(gradient, self.dtype)) for s in state)
