"""One is added to the forget gate, as some frameworks do."""

from __future__ import annotations

from pytest_ecornn.contract.cells import Blocks
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"


class Fault(Loop):
    def step(self, x: Blocks, h: Blocks, state: Blocks, parameters: Parameters) -> Blocks:
        return super().step((x[0], x[1] + 1, x[2], x[3]), h, state, parameters)
