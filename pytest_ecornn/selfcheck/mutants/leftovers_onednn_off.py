"""oneDNN is switched off for products that repeat, and stays so."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: globals_unchanged"
CELL = "gru"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        torch.backends.mkldnn.set_flags(False)
        return layer(x, state, lengths)
