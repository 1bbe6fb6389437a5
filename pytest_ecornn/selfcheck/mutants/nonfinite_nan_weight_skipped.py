"""Weights that are no larger than zero either way are skipped, as of a sparse matrix, and NaN is not larger."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: non-finite"


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        return {name: _nonzero(weight) for name, weight in super().parameters(weights, suffix).items()}


def _nonzero(weight: Tensor) -> Tensor:
    return torch.where(weight.abs() > 0, weight, 0.0)
