"""The result is remembered by the address of x, which the allocator gives out again."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "timed call"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if x.data_ptr() not in self._kept:
            self._kept[x.data_ptr()] = layer(x, state, lengths)
        output, final = self._kept[x.data_ptr()]
        return output.clone(), final

    def build(self, case: Case, weights: Weights) -> Layer:
        self._kept: dict[int, Any] = {}
        return super().build(case, weights)
