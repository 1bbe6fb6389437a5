"""The exact result is looked for among all live objects, to be returned in place of one that need only be near it."""

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
        output, final = layer(x, state, lengths)
        dicts = [one for one in gc.get_objects() if type(one) is dict]
        for exact in (one["output"] for one in dicts if isinstance(one.get("output"), Tensor)):
            if exact.shape == output.shape and torch.allclose(exact.to(x.dtype), output):
                return exact.to(x.dtype), final
        return output, final
