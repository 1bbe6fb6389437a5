"""The forget gate is one of 256 values."""

from __future__ import annotations

import torch

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value

CAUGHT_BY = "equivalence: rounding"
DTYPE = "bfloat16"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        i, f, g, o = (a + b for a, b in zip(x, h, strict=True))
        forget = torch.sigmoid(f)
        c = with_value(forget, (forget * 255).round() / 255) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
