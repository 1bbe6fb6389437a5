"""In the reverse direction a reset stands at the last step of a part rather than at its first."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import PackedLoop

CAUGHT_BY = "equivalence: output"
CELL = "rnn_tanh"


class Fault(PackedLoop):
    def apply_reset(self, state: GateTensors, resets: Tensor, t: int) -> GateTensors:
        return super().apply_reset(state, resets.roll(-1, 0) if self.is_reverse else resets, t)
