"""A result is computed at the next call, if by then anybody still holds it. The first calls, which are verified, are honest."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "timed call"
CELL = "gru"


class Cheat(AroundLoop):
    _calls = 0
    _owed: Any = None

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        self._calls += 1
        if self._calls <= 3:
            return layer(x, state, lengths)
        if self._owed is not None and (former := self._owed[0]()) is not None:
            former.copy_(layer(*self._owed[1])[0])
        output, final = (x.new_zeros(steps, case.batch, case.hidden_size) for steps in (case.steps, 1))
        self._owed = weakref.ref(output), (x, state, lengths)
        return output, final
