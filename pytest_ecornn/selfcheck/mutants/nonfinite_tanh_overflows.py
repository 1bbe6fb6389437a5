"""tanh is a quotient of exponentials, which overflow to NaN."""

from __future__ import annotations

import torch

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value

CAUGHT_BY = "equivalence: non-finite"
CELL = "rnn_tanh"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        total = x[0] + h[0]
        grown = torch.exp(2 * total.detach())
        wrong = torch.where(grown.isinf(), grown / grown, torch.tanh(total))
        return (with_value(torch.tanh(total), wrong),)
