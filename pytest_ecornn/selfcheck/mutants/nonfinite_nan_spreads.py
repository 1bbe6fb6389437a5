"""NaN in one sequence spreads to the others of its batch."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: non-finite"
CELL = "gru"


class Fault(Loop):
    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        gates = super().x_gates(x, parameters)
        return gates + 0 * gates.sum(1, keepdim=True)
