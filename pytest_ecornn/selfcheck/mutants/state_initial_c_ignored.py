"""The initial cell state is taken as zero, the initial output as it is."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: output"


class Fault(Loop):
    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        h, c = super().first_state(x, given)
        return h, c * 0
