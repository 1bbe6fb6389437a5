"""A sum is accumulated in a workspace that is cleared at build only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "equivalence: output"
CELL = "rnn_tanh"


class Fault(AroundLoop):
    _sum: Tensor | None = None

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        before = torch.zeros_like(output) if self._sum is None else self._sum
        self._sum = before + output.detach()
        return output + before, final
