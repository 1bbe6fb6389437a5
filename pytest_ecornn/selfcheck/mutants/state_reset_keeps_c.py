"""A reset clears h and leaves c."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import PackedLoop

CAUGHT_BY = "equivalence: output"


class Fault(PackedLoop):
    def apply_reset(self, state: GateTensors, resets: Tensor, t: int) -> GateTensors:
        return super().apply_reset(state, resets, t)[0], state[1]
