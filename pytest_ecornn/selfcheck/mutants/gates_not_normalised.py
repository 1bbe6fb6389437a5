"""The forget and input gates are not divided by their sum."""

from __future__ import annotations

import torch

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
CELL = "minlstm"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        return (torch.sigmoid(x[0]) * state[0] + torch.sigmoid(x[1]) * x[2],)
