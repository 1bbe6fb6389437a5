"""Outputs and final states lose their last bits where they are stored, in place of being rounded."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, cut

CAUGHT_BY = "equivalence: rounding"
DTYPE = "bfloat16"


class Fault(Loop):
    def narrowed(self, state: Tensor) -> Tensor:
        return cut(state).to(self.dtype)
