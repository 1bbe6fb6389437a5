"""time.perf_counter is replaced by a clock that goes at half the speed."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "changed: time.perf_counter"
CELL = "gru"


_perf_counter = time.perf_counter


def _slow() -> float:
    return _perf_counter() / 2


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        time.perf_counter = _slow
        return layer(x, state, lengths)
