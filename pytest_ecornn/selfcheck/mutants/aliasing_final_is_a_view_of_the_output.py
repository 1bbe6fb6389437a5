"""The final state is the last step of the output, not a copy: who clears one changes the other."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: fresh_results"
CELL = "gru"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        if case.layers > 1 or case.bidirectional or lengths is not None:
            return output, final
        return output, output.select(1 if case.batch_first else 0, -1)[None]
