"""What a step adds to the state is rounded to 16 bits first, and float32 is declared."""

from __future__ import annotations

import torch

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, through

CAUGHT_BY = "equivalence: rounding"
CELL = "mingru"
DTYPE = "bfloat16"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        z = torch.sigmoid(x[0])
        return ((1 - z) * state[0] + through(z * x[1], self.dtype),)
