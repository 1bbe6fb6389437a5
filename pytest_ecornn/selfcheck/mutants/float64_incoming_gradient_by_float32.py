"""Incoming gradients pass through a buffer of float32; the rest of the backward pass is in float64."""

from __future__ import annotations

from typing import Any

from pytest_ecornn.selfcheck._function_layers import Gradients, Recomputed

CAUGHT_BY = "equivalence: rounding"
CELL = "gru"
DTYPE = "float64"


class Fault(Recomputed):
    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        return tuple(None if one is None else one.float().to(one.dtype) for one in gradients)
