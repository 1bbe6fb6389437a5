"""The input gate and the forget gate are swapped."""

from __future__ import annotations

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        order = (1, 0, 2, 3)
        return super().step(tuple(x[k] for k in order), tuple(h[k] for k in order), state, parameters)
