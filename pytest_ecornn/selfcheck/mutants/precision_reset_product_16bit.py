"""The reset gate's product with W_hn h is rounded to 16 bits, and float32 is declared."""

from __future__ import annotations

import torch

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, through

CAUGHT_BY = "equivalence: rounding"
CELL = "gru"
DTYPE = "bfloat16"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = (torch.sigmoid(a + b) for a, b in zip(x[:2], h[:2], strict=True))
        n = torch.tanh(x[2] + through(r * h[2], self.dtype))
        return (n + z * (state[0] - n),)
