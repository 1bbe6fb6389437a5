"""The clock is replaced where the harness has put it by."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn import clocks
from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop, half_speed

CAUGHT_BY = "changed: pytest_ecornn.clocks.perf_counter"
CELL = "gru"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        setattr(clocks, "perf_counter", half_speed)  # noqa: B010 - mypy knows better
        return layer(x, state, lengths)
