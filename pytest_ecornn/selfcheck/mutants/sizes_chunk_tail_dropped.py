"""The last chunk of 96 steps is left out where it is not full; a sequence shorter than one chunk is run whole."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: output"
CELL = "gru"
CHUNK = 96


class Fault(Loop):
    def store(self, outputs: Sequence[Tensor]) -> Tensor:
        output = super().store(outputs)
        full = len(output) // CHUNK * CHUNK or len(output)
        return output * (output.new_tensor([t < full for t in range(len(output))])[:, None, None])
