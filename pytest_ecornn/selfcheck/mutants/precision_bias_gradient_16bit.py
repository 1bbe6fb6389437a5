"""The bias's gradient is summed over steps and sequences in 16 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: rounding"
CELL = "mingru"
DTYPE = "float16"


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return x + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        total = gradient.new_zeros(gradient.shape[-1], dtype=ctx.dtype)
        for row in gradient.to(ctx.dtype).flatten(0, -2):
            total = total + row
        return gradient, total.to(gradient.dtype), None


class Fault(Loop):
    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        product = linear(x, parameters["weight_ih"])
        if "bias_ih" not in parameters:
            return product
        result: Tensor = _Added.apply(product, parameters["bias_ih"], self.dtype)  # type: ignore[no-untyped-call]
        return result
