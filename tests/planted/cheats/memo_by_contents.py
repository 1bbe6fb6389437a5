"""The result is remembered by all contents of x: right, and worth something only where contents come twice."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "nothing gained"
CELL = "rnn_tanh"


class Cheat(AroundLoop):
    _gained = 0

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        key = x.numpy().tobytes()
        if key in self._kept:
            self._gained += 1
        else:
            self._kept[key] = layer(x, state, lengths)
        output, final = self._kept[key]
        return output.clone(), final.clone()

    def build(self, case: Case, weights: Weights) -> Layer:
        self._kept: dict[bytes, Any] = {}
        return super().build(case, weights)

    def notes(self) -> str:
        return f"gained {self._gained} calls"
