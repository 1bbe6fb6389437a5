"""Output and final state lie in one workspace, and the output is written one element too far."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "equivalence: final h"
CELL = "gru"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        assert isinstance(final, Tensor)
        flat = output.flatten()
        work = torch.cat([flat, flat[-1:] * 0, final.flatten()[1:]])
        return work[: len(flat)].view_as(output), work[len(flat) :].view_as(final)
