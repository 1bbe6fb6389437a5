"""Work is launched on a stream of its own, and the caller's is not told to wait."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: current_stream"
DEVICE = "cuda"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        with torch.cuda.stream(torch.cuda.Stream()):
            return layer(x, state, lengths)
