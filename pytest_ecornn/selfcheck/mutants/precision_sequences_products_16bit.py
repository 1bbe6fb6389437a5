"""W_ih's gradient is a product a sequence, rounded to 16 bits before they are added."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, through, with_gradient

CAUGHT_BY = "equivalence: rounding"
CELL = "mingru"
DTYPE = "bfloat16"


class Fault(Loop):
    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        def one(sequence: Tensor) -> Tensor:
            weight = with_gradient(parameters["weight_ih"], lambda gradient: through(gradient, self.dtype))
            return linear(sequence, weight, parameters.get("bias_ih"))

        return torch.stack([one(sequence) for sequence in x.unbind(1)], 1)
