"""TF32 is switched on for products where IEEE was asked for; on a CPU: precision_tf32."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.reference.precision import fp32_precision
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: rounding"
DEVICE = "cuda"


class Fault(Loop):
    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        with fp32_precision("matmul", "tf32"):
            return super().h_gates(h, parameters)
