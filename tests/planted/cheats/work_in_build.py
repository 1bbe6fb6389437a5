"""In training mode, too, weights are made ready when the layer is built."""

from __future__ import annotations

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.planted._correct import Loop, Parameters, with_value

CAUGHT_BY = "equivalence: output"
CELL = "rnn_tanh"
MODE = "training"


class Cheat(Loop):
    def build(self, case: Case, weights: Weights) -> Layer:
        layer = super().build(case, weights)
        self._kept = {name: value.detach().clone() for name, value in super().parameters(weights, "_l0").items()}
        return layer

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        return {name: with_value(value, self._kept[name]) for name, value in super().parameters(weights, suffix).items()}
