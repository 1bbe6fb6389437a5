"""The state crosses steps in 16 bits, and float32 is declared."""

from __future__ import annotations

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: rounding"
CELL = "gru"
DTYPE = "bfloat16"


class Fault(Loop):
    def carried(self, state: GateTensors) -> GateTensors:
        return tuple(s.to(self.dtype).to(self.compute) for s in state)
