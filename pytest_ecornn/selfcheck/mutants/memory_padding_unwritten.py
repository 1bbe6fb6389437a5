"""Steps after a sequence's end are left as the allocator gave them."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "poison"
CELL = "rnn_tanh"


class Fault(Loop):
    def padded(self, alive: Tensor, output: Tensor) -> Tensor:
        return torch.where(alive, output, torch.empty_like(output))
