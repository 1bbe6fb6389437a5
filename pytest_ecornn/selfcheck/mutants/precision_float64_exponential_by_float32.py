"""A float64 layer computes its exponentials in float32, and all else in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: rounding"
CELL = "minlstm"
DTYPE = "float64"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        keep = self._odds(x[1]) / (self._odds(x[0]) + self._odds(x[1]))
        return (keep * state[0] + (1 - keep) * x[2],)

    def _odds(self, x: Tensor) -> Tensor:
        """1 / sigmoid(x)."""
        return 1 + torch.exp(-x.clamp(-60, 60).float()).to(self.compute)
