"""Pruned weights, which are zero, get a gradient."""

from __future__ import annotations

from pytest_ecornn.contract import Weights, cells
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: grad weight_hh"
CELL = "rnn_tanh"


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        return {name: p.to(self.compute) for name, p in cells.layer_parameters(weights, suffix).items()}
