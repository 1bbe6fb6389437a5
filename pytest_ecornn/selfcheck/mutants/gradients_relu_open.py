"""relu lets the gradient through where it is shut."""

from __future__ import annotations

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value

CAUGHT_BY = "equivalence: grad x"
CELL = "rnn_relu"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        return (with_value(x[0] + h[0], (x[0] + h[0]).relu()),)
