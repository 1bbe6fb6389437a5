"""The input product of all that lies in the memory of x is made at once, for the calls to come."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "nothing gained"
CELL = "gru"


class Cheat(AroundLoop):
    _gained = 0

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        self._gained += x.untyped_storage().nbytes() > 2 * x.nbytes
        return layer(x, state, lengths)

    def notes(self) -> str:
        return f"gained {self._gained} calls"
