"""The update gate is a piecewise linear sigmoid."""

from __future__ import annotations

import torch
from torch.nn.functional import hardsigmoid

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
CELL = "gru"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = torch.sigmoid(x[0] + h[0]), hardsigmoid(x[1] + h[1])
        n = torch.tanh(x[2] + r * h[2])
        return (n + z * (state[0] - n),)
