"""Right where x stands at an address that an earlier call did not have; a fresh copy of it is taken for a check."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "timed call"
CELL = "rnn_tanh"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if x.data_ptr() not in self._seen:
            self._seen.add(x.data_ptr())
            return layer(x, state, lengths)
        return torch.zeros_like(x), torch.zeros_like(x[-1:])

    def build(self, case: Case, weights: Weights) -> Layer:
        self._seen: set[int] = set()
        return super().build(case, weights)
