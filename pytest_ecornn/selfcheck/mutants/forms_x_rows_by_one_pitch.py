"""Rows of x are found by one pitch, that of the second dimension: right with gaps and offsets, wrong where x is transposed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: layouts"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        pitch = min(x.stride(0), x.stride(1))
        return layer(x.as_strided(x.shape, (x.shape[1] * pitch, pitch, x.stride(2))), state, lengths)
