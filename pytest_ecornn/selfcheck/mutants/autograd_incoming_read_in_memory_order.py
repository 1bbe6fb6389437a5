"""The output's incoming gradient is read in the order of memory, as if it were contiguous."""

from __future__ import annotations

from typing import Any

from pytest_ecornn.selfcheck._correct_layers import read_in_memory_order
from pytest_ecornn.selfcheck._function_layers import Gradients, Recomputed

CAUGHT_BY = "property: incoming_layouts"


class Fault(Recomputed):
    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        return tuple(None if one is None else read_in_memory_order(one) for one in gradients)
