"""x is read as if its rows lay one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "equivalence: output"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        dense = torch.empty(x.shape, device="meta").stride()
        return layer(x.as_strided(x.shape, dense, x.storage_offset()), state, lengths)
