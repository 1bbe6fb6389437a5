"""What is not finite in incoming gradients becomes zero: a loss scaler sees no overflow."""

from __future__ import annotations

from typing import Any

from pytest_ecornn.selfcheck._function_layers import Gradients, Recomputed

CAUGHT_BY = "property: incoming_sizes"
CELL = "minlstm"


class Fault(Recomputed):
    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        return tuple(None if one is None else one.nan_to_num(0.0, 0.0, 0.0) for one in gradients)
