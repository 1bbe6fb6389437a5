"""Each sequence ends one step early."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: output"


class Fault(Loop):
    def alive(self, t: int, lengths: Tensor) -> Tensor:
        return lengths > t + 1
