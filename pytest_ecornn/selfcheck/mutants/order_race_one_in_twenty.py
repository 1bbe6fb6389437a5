"""One call in twenty, at random, returns an element that another thread has overwritten."""

from __future__ import annotations

import random
from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "equivalence: output"
PROFILE = "default"


_CHANCE = random.Random(3)


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        if _CHANCE.random() < 1 / 20:
            output.data[-1, -1, -1] += 0.5
        return output, final
