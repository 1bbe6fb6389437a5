"""The gates' exponential has a relative error of up to 1e-5."""

from __future__ import annotations

import torch

from pytest_ecornn.contract.cells import GateTensors, positive
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: rounding"
CELL = "minlstm_positive"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        f, i = (1 / (1 + torch.exp(-x[k]) * (1 + 1e-5 * torch.sin(50 * x[k]))) for k in (0, 1))
        keep = f / (f + i)
        return (keep * state[0] + (1 - keep) * positive(x[2]),)
