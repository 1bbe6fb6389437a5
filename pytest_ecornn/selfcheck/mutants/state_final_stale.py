"""The final state is that before the last step."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "equivalence: final h"
CELL = "gru"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        if case.steps == 1 or case.bidirectional:
            return output, final
        shorter = x[:, :-1] if case.batch_first else x[:-1]
        return output, layer(shorter, state, None if lengths is None else lengths.clamp(max=case.steps - 1))[1]
