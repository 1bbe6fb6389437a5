"""The reverse direction begins its partial chunk, the first that it comes to, without the initial state."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: output"
CELL = "minlstm"
MINIMUM_CHUNK = 4 * 11


class Fault(Loop):
    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        is_partial = len(x) > MINIMUM_CHUNK and len(x) % MINIMUM_CHUNK != 0
        return super().first_state(x, () if self.is_reverse and is_partial else given)
