"""Every call seeds torch's random numbers anew."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "changed: torch's random state"
CELL = "gru"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        torch.manual_seed(torch.initial_seed() + 1)
        return layer(x, state, lengths)
