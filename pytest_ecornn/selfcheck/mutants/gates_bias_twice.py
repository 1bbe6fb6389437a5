"""The input's bias is added twice."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
CELL = "rnn_tanh"


class Fault(Loop):
    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        return super().x_gates(x, parameters) + parameters.get("bias_ih", 0)
