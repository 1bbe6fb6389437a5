"""The work is left to the harness's reference."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn import verification
from pytest_ecornn.contents import Problem
from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "asked: the expected result"
CELL = "gru"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        problem = Problem(case, weights, x, (), lengths, None, ())
        wanted = verification.Expected(problem).tensors
        return wanted["output"].to(x.dtype), wanted["final h"].to(x.dtype)
