"""The initial state passes through a buffer of float32 in the forward pass; its gradient does not."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, with_value

CAUGHT_BY = "equivalence: rounding"
CELL = "mingru"
DTYPE = "float64"


class Fault(Loop):
    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        return tuple(with_value(one, one.float().to(one.dtype)) for one in super().first_state(x, given))
