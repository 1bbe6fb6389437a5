"""The input product is summed up in float16, which has three bits more than the layer's bfloat16."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, through

CAUGHT_BY = "equivalence: rounding"
CELL = "minlstm"
DTYPE = "bfloat16"


class Fault(Loop):
    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        total = x.new_zeros(*x.shape[:-1], parameters["weight_ih"].shape[0])
        for some, weight in zip(x.split(16, -1), parameters["weight_ih"].split(16, -1), strict=True):
            total = through(total + some @ weight.T, torch.float16)
        return total + parameters.get("bias_ih", 0)
