"""The forget gate's gradient alone is rounded to 16 bits, and float32 is declared."""

from __future__ import annotations

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, through, with_gradient

CAUGHT_BY = "equivalence: rounding"
DTYPE = "bfloat16"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        forget = with_gradient(x[1], lambda gradient: through(gradient, self.dtype))
        return super().step((x[0], forget, *x[2:]), h, state, parameters)
