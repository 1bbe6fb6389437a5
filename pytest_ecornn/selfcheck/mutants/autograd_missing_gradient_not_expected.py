"""The backward pass takes a gradient of every output for granted, and raises where autograd has none."""

from __future__ import annotations

from typing import Any

from pytest_ecornn.selfcheck._function_layers import Gradients, Recomputed

CAUGHT_BY = "property: unused_results"
CELL = "gru"


class Fault(Recomputed):
    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        return tuple(one.contiguous() for one in gradients)  # type: ignore[union-attr]
