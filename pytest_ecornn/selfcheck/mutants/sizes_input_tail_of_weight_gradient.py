"""The input weight's gradient lacks the columns after the last whole tile; values and other gradients are right."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract import Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_gradient

CAUGHT_BY = "equivalence: grad weight_ih"


def whole_tiles(gradient: Tensor, columns: int = 48) -> Tensor:
    kept = gradient.clone()
    kept[:, gradient.shape[1] // columns * columns or gradient.shape[1] :] = 0
    return kept


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        return {name: with_gradient(p, whole_tiles) if name == "weight_ih" else p for name, p in found.items()}
