"""Weights are made ready at the first call, and again when torch has counted a change of them."""

from __future__ import annotations

from typing import Any

from pytest_ecornn.contract import Weights
from pytest_ecornn.planted._correct import Loop, Parameters, with_value

CAUGHT_BY = "equivalence: output"
CELL = "rnn_tanh"
MODE = "training"


class Cheat(Loop):
    _kept: tuple[Any, Any] = (None, None)

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        own, versions = super().parameters(weights, suffix), [weight._version for weight in weights.values()]
        if self._kept[0] != versions:
            self._kept = versions, {name: value.detach().clone() for name, value in own.items()}
        return {name: with_value(value, self._kept[1][name]) for name, value in own.items()}
