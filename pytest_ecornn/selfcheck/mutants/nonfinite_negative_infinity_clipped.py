"""The state is kept above the lowest finite number; what is over the largest passes."""

from __future__ import annotations

import torch

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: non-finite"
CELL = "mingru"


class Fault(Loop):
    def carried(self, state: GateTensors) -> GateTensors:
        return tuple(s.clamp(min=torch.finfo(self.compute).min) for s in state)

    def first_state(self, x: torch.Tensor, given: GateTensors) -> GateTensors:
        return self.carried(super().first_state(x, given))
