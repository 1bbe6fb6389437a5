"""A reset stops the state and lets its gradient pass."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import PackedLoop, with_value

CAUGHT_BY = "equivalence: grad x or grad initial h"
CELL = "minlstm_positive"


class Fault(PackedLoop):
    def apply_reset(self, state: GateTensors, resets: Tensor, t: int) -> GateTensors:
        return tuple(with_value(s, shown) for s, shown in zip(state, super().apply_reset(state, resets, t), strict=True))
