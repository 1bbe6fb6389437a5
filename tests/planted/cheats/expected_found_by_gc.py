"""The expected result is looked for among all live objects."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "asked: gc.get_objects"
CELL = "gru"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        results = layer(x, state, lengths)
        wanted = [one for one in gc.get_objects() if type(one) is dict and "output" in one]
        exact = next((one["output"] for one in wanted if isinstance(one["output"], Tensor)), results[0])
        return (exact.to(x.dtype) if torch.allclose(exact.to(x.dtype), results[0]) else results[0]), results[1]
