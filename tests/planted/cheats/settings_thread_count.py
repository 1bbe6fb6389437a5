"""Every call takes another number of torch's threads, from the other implementations as well."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "changed: torch's threads"
CELL = "gru"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        torch.set_num_threads(torch.get_num_threads() % 2 + 1)
        return layer(x, state, lengths)
