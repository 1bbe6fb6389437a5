"""The state is rounded to 16 bits after every eighth step, as where a chunk hands it on; float32 is declared."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, through

CAUGHT_BY = "equivalence: rounding"
CELL = "mingru_positive"
DTYPE = "float16"


class Fault(Loop):
    def advance(
        self, t: int, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None
    ) -> tuple[GateTensors, Tensor]:
        new, output = super().advance(t, x, state, parameters, lengths)
        return (tuple(through(s, self.dtype) for s in new) if t % 8 == 7 else new), output
