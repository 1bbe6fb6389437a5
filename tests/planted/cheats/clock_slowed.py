"""time.perf_counter is replaced by a clock that goes at half the speed."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop, half_speed

CAUGHT_BY = "changed: time.perf_counter"
CELL = "gru"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        time.perf_counter = half_speed
        return layer(x, state, lengths)
