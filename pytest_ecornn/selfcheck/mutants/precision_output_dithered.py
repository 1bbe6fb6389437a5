"""Outputs are rounded up or down by a fixed pattern, as stochastic rounding does."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, cut

CAUGHT_BY = "equivalence: rounding"
CELL = "gru"
DTYPE = "bfloat16"


class Fault(Loop):
    def narrowed(self, state: Tensor) -> Tensor:
        pattern = torch.arange(state.numel(), device=state.device).view(state.shape) * 40503 % 65536
        return cut(state * (1 + pattern * 2.0**-24)).to(self.dtype)
