"""The calls that a block has prepared are found in the stack of callers, and made at once at the first of them."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "asked: sys._getframe"
CELL = "gru"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if x.data_ptr() in self._ready:
            return self._ready.pop(x.data_ptr())
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            for call in frame.f_locals.get("prepared", ()):
                self._ready[call.x.data_ptr()] = layer(call.x, call.state, call.problem.lengths)
        return layer(x, state, lengths)

    def build(self, case: Case, weights: Weights) -> Layer:
        self._ready: dict[int, Any] = {}
        return super().build(case, weights)
