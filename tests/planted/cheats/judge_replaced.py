"""The check of what timed calls returned is replaced by one that finds nothing, and the work is left undone from then on."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn import measurement
from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "changed: pytest_ecornn.measurement.Kept.verify"
CELL = "gru"


class Cheat(AroundLoop):
    _calls = 0

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        self._calls += 1
        if self._calls <= 3:
            return layer(x, state, lengths)
        measurement.Kept.verify = lambda *_: []  # type: ignore[method-assign]
        return x, x[-1:]
