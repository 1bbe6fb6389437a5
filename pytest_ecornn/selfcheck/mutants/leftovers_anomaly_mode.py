"""A training call looks for NaN by autograd's anomaly mode, which stays on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: globals_unchanged"
CELL = "mingru"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if case.training:
            torch.autograd.set_detect_anomaly(True)
        return layer(x, state, lengths)
