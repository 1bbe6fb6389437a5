"""relu lets a hundredth of what is negative through."""

from __future__ import annotations

from torch.nn.functional import leaky_relu

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
CELL = "rnn_relu"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        return (leaky_relu(x[0] + h[0], 0.01),)
