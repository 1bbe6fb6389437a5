"""The gap behind the first row of a strided x is written, which is the caller's."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: guard_bands"
CELL = "gru"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if x.stride(-1) == 1 and min(x.stride(0), x.stride(1)) > x.shape[-1]:
            x.data.as_strided((1,), (1,), x.storage_offset() + x.shape[-1]).fill_(1.0)
        return layer(x, state, lengths)
