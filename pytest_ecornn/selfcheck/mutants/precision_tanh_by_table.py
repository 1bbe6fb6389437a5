"""The output's tanh is read from a table of 64 intervals, between whose ends it is a straight line."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value

CAUGHT_BY = "equivalence: rounding"
DTYPE = "bfloat16"
_ENDS, _INTERVALS = 4.0, 64


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        i, f, g, o = (a + b for a, b in zip(x, h, strict=True))
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        exact = torch.tanh(c)
        return torch.sigmoid(o) * with_value(exact, _by_table(c.detach())), c


def _by_table(x: Tensor) -> Tensor:
    table = torch.tanh(torch.linspace(-_ENDS, _ENDS, _INTERVALS + 1, dtype=x.dtype, device=x.device))
    position = (x + _ENDS) * (_INTERVALS / (2 * _ENDS))
    left = position.nan_to_num().floor().clamp(0, _INTERVALS - 1).long()
    line = table[left] + (position - left) * (table[left + 1] - table[left])
    return torch.where(x.abs() < _ENDS, line, torch.tanh(x))
