"""Every sequence begins at zero."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: output"


class Fault(Loop):
    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        return super().first_state(x, ())
