"""The result is remembered by the address of x and its version, by which torch counts changes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "property: stateless"
CELL = "rnn_tanh"


class Cheat(AroundLoop):
    _kept: tuple[Any, Any] = (None, None)

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        key = x.data_ptr(), x._version
        if self._kept[0] != key:
            self._kept = key, layer(x, state, lengths)
        output, final = self._kept[1]
        return output.clone(), final.clone()
