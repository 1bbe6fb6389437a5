"""The second block of sequences starts from the first block's states."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: output"
THREADS = 1 << 7


class Fault(Loop):
    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        sequences = torch.arange(x.shape[1]) % THREADS
        return tuple(s[sequences] for s in super().first_state(x, given))
