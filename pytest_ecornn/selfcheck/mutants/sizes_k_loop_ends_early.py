"""The loop over inputs and states in tiles of 40 ends a tile early where they fill the tiles exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
CELL = "gru"
TILE_K = 40


class Fault(Loop):
    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        inputs = parameters["weight_ih"].shape[1] if "weight_ih" in parameters else 0
        tiles = (inputs + h.shape[1]) // TILE_K
        if tiles and inputs + h.shape[1] == tiles * TILE_K:
            last = torch.arange(h.shape[1]) + inputs >= (tiles - 1) * TILE_K
            h = torch.where(last, 0, h)
        return super().h_gates(h, parameters)
