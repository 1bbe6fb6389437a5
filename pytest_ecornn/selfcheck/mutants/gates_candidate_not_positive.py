"""The candidate is taken as it is, without the positive g."""

from __future__ import annotations

from pytest_ecornn.contract import cells
from pytest_ecornn.contract.cells import Blocks
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
CELL = "mingru_positive"


class Fault(Loop):
    def step(self, x: Blocks, h: Blocks, state: Blocks, parameters: Parameters) -> Blocks:
        return cells.get("mingru").step(x, h, state, parameters)
