"""Only the first call of a layer applies the first step's input."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "equivalence: output"
CELL = "rnn_relu"


class Fault(AroundLoop):
    _calls = 0

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        self._calls += 1
        return layer(x if self._calls == 1 else x * 0.5, state, lengths)
