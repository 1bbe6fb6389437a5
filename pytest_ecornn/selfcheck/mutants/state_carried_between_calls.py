"""A call that is given no initial state begins where the last call ended."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "equivalence: output"
CELL = "gru"


class Fault(AroundLoop):
    _last: Tensor | None = None

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, self._last if state is None else state, lengths)
        assert isinstance(final, Tensor)
        self._last = final.detach()
        return output, final
