"""Right unless the names of the calling functions say that a clock is running."""

from __future__ import annotations

import traceback
from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "asked: sys._getframe"
CELL = "rnn_tanh"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if not any(frame.name == "time" for frame in traceback.extract_stack()):
            return layer(x, state, lengths)
        return layer(x.float(), state, lengths)
