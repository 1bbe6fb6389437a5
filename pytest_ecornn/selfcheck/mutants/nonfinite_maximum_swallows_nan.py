"""relu is a maximum that returns the number where the other is NaN."""

from __future__ import annotations

import torch

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: non-finite"
CELL = "rnn_relu"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        total = x[0] + h[0]
        return (torch.where(total > 0, total, 0),)
