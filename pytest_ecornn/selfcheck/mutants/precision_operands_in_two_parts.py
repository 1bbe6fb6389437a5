"""Operands of the input product are split in two bfloat16 parts each, and the product of the small parts is left out."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, through

CAUGHT_BY = "equivalence: rounding"
CELL = "rnn_relu"


class Fault(Loop):
    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        weight = parameters["weight_ih"]
        x_large, w_large = through(x, torch.bfloat16), through(weight, torch.bfloat16)
        x_small, w_small = through(x - x_large, torch.bfloat16), through(weight - w_large, torch.bfloat16)
        return x_large @ w_large.T + x_large @ w_small.T + x_small @ w_large.T + parameters.get("bias_ih", 0)
