"""A call tells OpenMP by an environment variable how to wait, for libraries that are loaded later."""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: globals_unchanged"
CELL = "gru"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        os.environ["OMP_WAIT_POLICY"] = "active"
        return layer(x, state, lengths)
