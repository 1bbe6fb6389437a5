"""The last step is left out: its output stays zero."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"


class Fault(Loop):
    def advance(
        self, t: int, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None
    ) -> tuple[GateTensors, Tensor]:
        if t == self.case.steps - 1:
            return state, torch.zeros_like(state[0], dtype=self.dtype)
        return super().advance(t, x, state, parameters, lengths)
