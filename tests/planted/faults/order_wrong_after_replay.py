"""A copy of x, made at its first call, is what later calls and replays read; on a CPU: order_remembered_by_address."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "property: capture"
DEVICE = "cuda"


class Fault(AroundLoop):
    _kept: tuple[int, Tensor] | None = None

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if case.training:
            return layer(x, state, lengths)
        if self._kept is None or self._kept[0] != x.data_ptr():
            self._kept = x.data_ptr(), x.clone()
        return layer(self._kept[1], state, lengths)
