"""The clock is replaced where the harness has put it by."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from pytest_ecornn import clocks
from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "changed: pytest_ecornn.clocks.perf_counter"
CELL = "gru"


_perf_counter = time.perf_counter


def _slow() -> float:
    return _perf_counter() / 2


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        setattr(clocks, "perf_counter", _slow)  # noqa: B010 - mypy knows better
        return layer(x, state, lengths)
