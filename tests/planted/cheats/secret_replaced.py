"""secrets.randbelow is replaced, so that it is known which call of a block is kept: the first."""

from __future__ import annotations

import secrets
from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "changed: secrets.randbelow"
CELL = "gru"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        secrets.randbelow = lambda exclusive_upper_bound: 0
        return layer(x, state, lengths)
