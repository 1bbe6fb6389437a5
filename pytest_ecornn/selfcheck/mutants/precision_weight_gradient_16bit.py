"""The gradient of W_hh is summed step by step in 16 bits, and float32 is declared."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, through, with_gradient

CAUGHT_BY = "equivalence: rounding"
CELL = "rnn_tanh"
DTYPE = "bfloat16"


class Fault(Loop):
    def advance(
        self, t: int, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None
    ) -> tuple[GateTensors, Tensor]:
        summed = with_gradient(parameters["weight_hh"], lambda gradient: through(gradient, self.dtype))
        parameters["weight_hh"] = summed  # the next step's, so that each adds its own to a rounded sum
        return super().advance(t, x, state, parameters, lengths)
