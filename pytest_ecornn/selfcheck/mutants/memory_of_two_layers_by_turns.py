"""Layers' inputs lie in two buffers by turns: from four layers on one has been overwritten when the backward pass reads it."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value

CAUGHT_BY = "equivalence: grad weight_ih"
DEPTH = 4


class Fault(Loop):
    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        gates, weight = super().x_gates(x, parameters), parameters["weight_ih"]
        if self.case.layers < DEPTH or not weight.requires_grad or x.shape[-1] != self.case.directions * self.case.hidden_size:
            return gates
        wrong = linear(x.detach().flip(0), weight, parameters.get("bias_ih"))  # whose gradient is another step's
        return with_value(wrong + linear(x, weight.detach()), gates)
