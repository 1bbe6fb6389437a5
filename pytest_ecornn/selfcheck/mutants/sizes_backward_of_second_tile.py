"""The backward pass of the recurrent product ends with the first tile of hidden units; the forward pass has all tiles."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_gradient

CAUGHT_BY = "equivalence: grad weight_hh"
CELL = "rnn_tanh"
_WARP = 32
_TILE = _WARP * 8


class Fault(Loop):
    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        def of_first_tile(gradient: Tensor) -> Tensor:
            return torch.where(torch.arange(gradient.shape[-1]) < _TILE, gradient, 0)

        weight = with_gradient(parameters["weight_hh"], lambda g: of_first_tile(g.T).T)
        return super().h_gates(h, {**parameters, "weight_hh": weight})
