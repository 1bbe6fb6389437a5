"""The candidate goes through a sigmoid in place of tanh."""

from __future__ import annotations

import torch

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        i, f, g, o = (torch.sigmoid(a + b) for a, b in zip(x, h, strict=True))
        c = f * state[1] + i * g
        return o * torch.tanh(c), c
