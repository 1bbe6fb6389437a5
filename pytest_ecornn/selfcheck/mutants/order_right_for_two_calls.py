"""From its third call on a layer halves its input."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: repeats"
CELL = "gru"


class Fault(AroundLoop):
    _calls = 0

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        self._calls += 1
        return layer(x if self._calls < 3 else x * 0.5, state, lengths)
