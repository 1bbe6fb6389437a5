"""Both gates underflow to zero, and their quotient is NaN."""

from __future__ import annotations

import torch

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: non-finite"
CELL = "minlstm"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        (keep,) = super().step(x, h, state, parameters)
        f, i = torch.sigmoid(x[0]), torch.sigmoid(x[1])
        return (torch.where(f + i == 0, (f + i).detach() / (f + i).detach(), keep),)
