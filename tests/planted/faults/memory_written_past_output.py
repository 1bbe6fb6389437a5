"""One element behind the output is written, where its memory goes on."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from tests.planted._correct import AroundLoop

CAUGHT_BY = "property: guard_bands"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        room, end = output.untyped_storage().nbytes() // output.element_size(), output.storage_offset() + output.numel()
        if end < room:
            output.data.as_strided((1,), (1,), end).fill_(1.0)
        return output, final
