"""What a graph reads is a copy of x made by the call before its capture; on a CPU: order_remembered_by_address."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: capture"
DEVICE = "cuda"


class Fault(AroundLoop):
    _kept: Tensor | None = None

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if self._kept is not None and not case.training and torch.cuda.is_current_stream_capturing():
            return layer(self._kept, state, lengths)
        self._kept = x.detach().clone()
        return layer(x, state, lengths)
