"""The candidate is taken as it is, without the positive g."""

from __future__ import annotations

from pytest_ecornn.contract import cells
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
CELL = "mingru_positive"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        return cells.get("mingru").step(x, h, state, parameters)
