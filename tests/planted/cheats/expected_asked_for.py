"""The expected result is asked of the function that the harness itself asks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn import verification
from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "asked: the expected result"
CELL = "gru"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        wanted = verification.expected(case)
        if torch.equal(x, wanted.problem.x):
            return tuple(wanted.tensors[name].to(x.dtype) for name in ("output", "final h"))
        return layer(x, state, lengths)
