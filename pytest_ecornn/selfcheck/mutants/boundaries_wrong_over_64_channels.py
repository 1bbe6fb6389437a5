"""Channels from the 64th on get no recurrent input."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"


class Fault(Loop):
    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        channel = torch.arange(self.case.hidden_size, device=h.device).repeat(len(self.cell.gates))
        return torch.where(channel < 64, super().h_gates(h, parameters), 0)
