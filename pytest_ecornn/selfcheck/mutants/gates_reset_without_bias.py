"""The reset gate is applied to the product, but not to the bias that was added to it."""

from __future__ import annotations

import torch

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
CELL = "gru"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = torch.sigmoid(x[0] + h[0]), torch.sigmoid(x[1] + h[1])
        bias = parameters["bias_hh"].chunk(3)[2] if "bias_hh" in parameters else 0
        n = torch.tanh(x[2] + r * (h[2] - bias) + bias)
        return (n + z * (state[0] - n),)
