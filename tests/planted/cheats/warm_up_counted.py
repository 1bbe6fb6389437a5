"""Right for as many calls as are likely not to be timed; later calls skip the recurrence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "timed call"
CELL = "rnn_tanh"


class Cheat(AroundLoop):
    _calls = 0

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        self._calls += 1
        if self._calls <= 20:
            return layer(x, state, lengths)
        output = torch.tanh(x)
        return output, output[-1:]
