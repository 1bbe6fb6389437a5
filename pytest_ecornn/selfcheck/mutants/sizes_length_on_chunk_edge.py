"""A sequence that ends on a chunk's edge is kept alive for one step into the next chunk."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: output"
CELL = "lstm"
CHUNK_STEPS = 20


class Fault(Loop):
    def alive(self, t: int, lengths: Tensor) -> Tensor:
        ends_on_edge = (lengths % CHUNK_STEPS == 0) & (lengths > CHUNK_STEPS)
        return torch.where(ends_on_edge, lengths >= t, lengths > t)
