"""Of two buffered chunks the second is overwritten by the first before it is read, where a sequence is just two chunks long."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
CELL = "mingru"
BUFFER = {"stages": 2, "steps": 56}


class Fault(Loop):
    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        gates = super().x_gates(x, parameters)
        stages, steps = BUFFER["stages"], BUFFER["steps"]
        return gates[:steps].repeat(stages, 1, 1) if len(gates) == stages * steps else gates
