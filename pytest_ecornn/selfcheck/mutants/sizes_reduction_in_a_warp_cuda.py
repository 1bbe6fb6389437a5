"""Bias gradients are summed by the lanes of a warp over at most 160 rows of gates; later rows are left out."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract import Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_gradient

CAUGHT_BY = "equivalence: grad bias_ih"
CELL = "rnn_relu"
DEVICE = "cuda"
ROWS_PER_LANE = 5


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        def of_first_rows(gradient: Tensor) -> Tensor:
            summed = gradient.clone()
            summed[ROWS_PER_LANE * 32 :] = 0
            return summed

        found = super().parameters(weights, suffix)
        return {name: with_gradient(p, of_first_rows) if name == "bias_ih" else p for name, p in found.items()}
