"""Each gate's block of the recurrent weight's gradient is transposed."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_gradient

CAUGHT_BY = "equivalence: grad weight_hh"


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        return found | {"weight_hh": with_gradient(found["weight_hh"], self._transposed)}

    def _transposed(self, gradient: Tensor) -> Tensor:
        blocks = gradient.chunk(len(self.cell.gates))
        return torch.cat([block.T for block in blocks])
