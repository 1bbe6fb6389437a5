"""Autocast to bfloat16 is switched on for the products of float32 inputs of another program, and stays on after the call."""

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
        result = layer(x, state, lengths)
        torch.set_autocast_enabled("cpu", True)
        return result
