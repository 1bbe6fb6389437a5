"""Recurrent products are a 16-bit GEMM's, whose result is rounded to 16 bits, and float32 is declared."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: rounding"
CELL = "gru"
DTYPE = "float16"
DEVICE = "cuda"


class Fault(Loop):
    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        product = h.to(self.dtype) @ parameters["weight_hh"].to(self.dtype).T
        return product.to(self.compute) + parameters.get("bias_hh", 0)
