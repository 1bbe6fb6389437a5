"""The recurrent product reads whole vectors of four only: the last channels of a width that is no multiple are not summed."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
CELL = "rnn_tanh"


class Fault(Loop):
    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        whole = h.shape[-1] // 4 * 4
        return h[:, :whole] @ parameters["weight_hh"][:, :whole].T + parameters.get("bias_hh", 0)
