"""A float64 layer is computed in float32 inside."""

from __future__ import annotations

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: rounding"
CELL = "mingru"
DTYPE = "float64"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        x, state = (tuple(one.float() for one in some) for some in (x, state))
        return tuple(s.to(self.compute) for s in super().step(x, h, state, parameters))
