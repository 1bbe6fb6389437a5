"""A reset takes effect at the step after the one that it stands at."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import PackedLoop

CAUGHT_BY = "equivalence: output"
CELL = "minlstm"


class Fault(PackedLoop):
    def apply_reset(self, state: GateTensors, resets: Tensor, t: int) -> GateTensors:
        late = resets.roll(-1 if self.is_reverse else 1, 0)
        late[-1 if self.is_reverse else 0] = False
        return super().apply_reset(state, late, t)
