"""The forward direction's final state is that after the padding, not that at the sequence's end."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: final h"


class Fault(Loop):
    def kept(self, alive: Tensor, new: GateTensors, state: GateTensors) -> GateTensors:
        return super().kept(alive, new, state) if self.is_reverse else new
