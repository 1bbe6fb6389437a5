"""A sequence of one step begins at zero whatever the initial state."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: output"
CELL = "gru"


class Fault(Loop):
    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        return super().first_state(x, () if self.case.steps == 1 else given)
