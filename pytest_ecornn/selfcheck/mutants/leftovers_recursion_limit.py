"""Recursion over time needs more depth than Python allows, so a long case raises the limit for good."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: globals_unchanged"
CELL = "minlstm"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if case.steps > 2:
            sys.setrecursionlimit(sys.getrecursionlimit() + 10 * case.steps)
        return layer(x, state, lengths)
