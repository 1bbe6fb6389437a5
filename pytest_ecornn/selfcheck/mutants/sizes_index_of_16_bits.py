"""Gates are addressed by 16 bits: beyond 65,536 of a step, sequences read those of the first ones."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
PROFILE = "default"  # quick has 129 x 129 units at most


class Fault(Loop):
    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        gates = super().h_gates(h, parameters)
        addresses = torch.arange(gates.numel()) & 0xFFFF
        return gates.flatten()[addresses].view(gates.shape)
