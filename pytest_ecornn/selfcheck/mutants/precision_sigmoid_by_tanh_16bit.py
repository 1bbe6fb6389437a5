"""Sigmoids are made of a tanh in 16 bits, as a GPU's packed instruction has it."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, through

CAUGHT_BY = "equivalence: rounding"
CELL = "gru"
DTYPE = "float16"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = (self._sigmoid(a + b) for a, b in zip(x[:2], h[:2], strict=True))
        n = torch.tanh(x[2] + r * h[2])
        return (n + z * (state[0] - n),)

    def _sigmoid(self, x: Tensor) -> Tensor:
        return 0.5 + 0.5 * through(torch.tanh(0.5 * x), self.dtype)
