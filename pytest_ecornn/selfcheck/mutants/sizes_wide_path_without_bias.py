"""Another path runs wide layers, chosen by the number of bits of their size, and leaves the recurrent bias out."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
CELL = "rnn_tanh"
PROFILE = "default"  # quick stops at 129


class Fault(Loop):
    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        gates = super().h_gates(h, parameters)
        return gates - parameters.get("bias_hh", 0) if h.shape[1].bit_length() > 9 else gates
