"""The state is clipped to the largest finite number."""

from __future__ import annotations

import torch

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: non-finite"
CELL = "mingru"


class Fault(Loop):
    def carried(self, state: GateTensors) -> GateTensors:
        largest = torch.finfo(self.compute).max
        return tuple(s.clamp(-largest, largest) for s in state)

    def first_state(self, x: torch.Tensor, given: GateTensors) -> GateTensors:
        return self.carried(super().first_state(x, given))
