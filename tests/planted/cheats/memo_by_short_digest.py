"""The result is remembered by a digest of x that is too short to tell all contents apart."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "timed call"
CELL = "rnn_tanh"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        key = crc32(x.numpy().tobytes()) % 16
        if key not in self._kept:
            self._kept[key] = layer(x, state, lengths)
        output, final = self._kept[key]
        return output.clone(), final.clone()

    def build(self, case: Case, weights: Weights) -> Layer:
        self._kept: dict[int, Any] = {}
        return super().build(case, weights)
