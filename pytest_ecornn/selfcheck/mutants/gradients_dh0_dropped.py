"""The gradient of the initial state is zero."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, with_gradient

CAUGHT_BY = "equivalence: grad initial h"
CELL = "gru"


class Fault(Loop):
    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        return tuple(with_gradient(s, lambda g: g * 0) for s in super().first_state(x, given))
