"""A batch of one takes a path that forgets the input's bias."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"


class Fault(Loop):
    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        return x @ parameters["weight_ih"].T if self.case.batch == 1 else super().x_gates(x, parameters)
