"""The expected result is taken from the cache behind the harness's function, without any work at all."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn import verification
from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "timed call"
CELL = "gru"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        wanted = verification._expected(case).tensors
        return wanted["output"].to(x.dtype), wanted["final h"].to(x.dtype)
