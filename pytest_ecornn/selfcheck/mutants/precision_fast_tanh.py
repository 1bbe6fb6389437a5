"""tanh is off by 2^-11, as a GPU's approximate instruction is."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value

CAUGHT_BY = "equivalence: rounding"
CELL = "rnn_tanh"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        exact = torch.tanh(x[0] + h[0])
        return (with_value(exact, _short(exact)),)


def _short(x: Tensor) -> Tensor:
    """x with 11 bits behind the point."""
    return torch.where(x.isfinite(), (x * 2048).round() / 2048, x)
