"""The addresses of the weights are taken when the layer is built: what is put in a weight's place later is not seen."""

from __future__ import annotations

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value

CAUGHT_BY = "property: each_weight_seen"
CELL = "rnn_tanh"


class Fault(Loop):
    def build(self, case: Case, weights: Weights) -> Layer:
        self._addresses = {name: weight.detach() for name, weight in weights.items()}
        return super().build(case, weights)

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        return {name: with_value(value, self._addresses[name + suffix].to(self.compute)) for name, value in found.items()}
