"""The gradient that is carried back is cut every fifty steps."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: grad x"
CELL = "minlstm"


class Fault(Loop):
    def advance(
        self, t: int, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None
    ) -> tuple[GateTensors, Tensor]:
        if t % 50 == 0 and 0 < t < self.case.steps:
            state = tuple(s.detach() for s in state)
        return super().advance(t, x, state, parameters, lengths)
