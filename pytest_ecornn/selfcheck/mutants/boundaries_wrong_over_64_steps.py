"""Sequences of more than 64 steps lose their state there."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
CELL = "gru"


class Fault(Loop):
    def advance(
        self, t: int, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None
    ) -> tuple[GateTensors, Tensor]:
        state = tuple(torch.zeros_like(s) for s in state) if t == 64 else state
        return super().advance(t, x, state, parameters, lengths)
