"""Each 32 columns' part of the recurrent product waits in 16 bits to be added, and float32 is declared."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, through

CAUGHT_BY = "equivalence: rounding"
CELL = "gru"
DTYPE = "bfloat16"


class Fault(Loop):
    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        pairs = zip(h.split(32, -1), parameters["weight_hh"].split(32, -1), strict=True)
        parts = [through(some @ weight.T, self.dtype) for some, weight in pairs]
        return torch.stack(parts).sum(0) + parameters.get("bias_hh", 0)
