"""Operands of the recurrent product are cut to TF32 where IEEE was asked for."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.reference.precision import tf32_linear
from pytest_ecornn.reference.rounding import Rounding
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: rounding"


class Fault(Loop):
    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        return tf32_linear(Rounding())(h, parameters["weight_hh"], parameters.get("bias_hh"))
