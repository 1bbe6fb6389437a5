"""W_ih is split in a 16-bit part and the rest, and the rest of an infinity is NaN."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: non-finite"
CELL = "rnn_relu"


class Fault(Loop):
    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        weight = parameters["weight_ih"]
        large = weight.to(torch.bfloat16).to(weight.dtype)
        return linear(x, large, parameters.get("bias_ih")) + linear(x, weight - large)
