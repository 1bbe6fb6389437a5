"""Variants are tried out at each call on contents that have not come before, and the best is used when they come again."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "nothing gained"
CELL = "rnn_relu"


class Cheat(AroundLoop):
    _gained = 0

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        key = x.numpy().tobytes()
        if key in self._best:
            self._gained += 1
            return self._best[key](x, state, lengths)
        results, self._best[key] = [layer(x, state, lengths) for _ in range(3)], layer
        return results[0]

    def build(self, case: Case, weights: Weights) -> Layer:
        self._best: dict[bytes, Layer] = {}
        return super().build(case, weights)

    def notes(self) -> str:
        return f"gained {self._gained} calls"
