"""The last of a loop's remaining steps, where seven are unrolled and six remain, sees no recurrent state."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"


class Fault(Loop):
    def advance(
        self, t: int, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None
    ) -> tuple[GateTensors, Tensor]:
        steps = self.case.steps
        if steps > 7 and steps % 7 == 6 and t == steps - 1:
            state = tuple(s * 0 for s in state)
        return super().advance(t, x, state, parameters, lengths)
