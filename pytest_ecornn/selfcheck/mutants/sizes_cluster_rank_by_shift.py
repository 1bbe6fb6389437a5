"""Gradients of sequences that another block of a cluster has, from the sixty-fifth on, are added once more by the first."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_gradient

CAUGHT_BY = "equivalence: grad x"
CELL = "mingru_positive"


class Fault(Loop):
    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        ranks = torch.arange(x.shape[1]) >> 6
        return super().x_gates(with_gradient(x, lambda g: g * (1 + ranks.clamp(max=1))[:, None]), parameters)
