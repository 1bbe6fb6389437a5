"""The state crosses steps in 16 bits, as is declared, but truncated."""

from __future__ import annotations

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, cut

CAUGHT_BY = "equivalence: rounding"
CELL = "minlstm"
DTYPE = "bfloat16"


class Fault(Loop):
    carry = "storage"

    def carried(self, state: GateTensors) -> GateTensors:
        return tuple(map(cut, state))
