"""No step begins anew: the mask of resets is not looked at."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import PackedLoop

CAUGHT_BY = "equivalence: output"
CELL = "gru"


class Fault(PackedLoop):
    def apply_reset(self, state: GateTensors, resets: Tensor, t: int) -> GateTensors:
        return state
