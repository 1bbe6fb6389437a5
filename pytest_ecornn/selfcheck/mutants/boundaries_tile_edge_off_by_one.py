"""The first channel of each tile of 16 but the first holds its left neighbour's value."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: output"


class Fault(Loop):
    def store(self, outputs: Sequence[Tensor]) -> Tensor:
        output = super().store(outputs)
        wrong = output.clone()
        wrong[..., 16::16] = output[..., 15:-1:16]
        return wrong
