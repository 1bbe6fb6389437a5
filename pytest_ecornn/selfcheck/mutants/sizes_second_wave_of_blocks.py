"""A persistent grid has 132 blocks of 16 by 16: those of a second wave take the forget gate of the first block's tile."""

from __future__ import annotations

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: rounding"
BLOCKS, TILE = 132, 16
PROFILE = "default"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        rows, columns = (-(-size // TILE) for size in x[0].shape)
        if rows * columns <= BLOCKS or any(size < 2 * TILE for size in x[0].shape):
            return super().step(x, h, state, parameters)
        row = BLOCKS // columns * TILE
        shifted = tuple(one.clone() for one in h)
        shifted[1][row : row + 1, :TILE] = h[1][:1, :TILE]
        return super().step(x, shifted, state, parameters)
