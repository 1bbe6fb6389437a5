"""A reset multiplies the state by 0, which a NaN or an infinity survives as NaN."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import PackedLoop

CAUGHT_BY = "equivalence: non-finite"
CELL = "mingru"


class Fault(PackedLoop):
    def apply_reset(self, state: GateTensors, resets: Tensor, t: int) -> GateTensors:
        return tuple(s * (~resets[t]).to(s.dtype)[:, None] for s in state)
