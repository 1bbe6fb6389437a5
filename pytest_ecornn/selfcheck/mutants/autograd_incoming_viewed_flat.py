"""Incoming gradients are viewed as rows, which raises where they are expanded or transposed."""

from __future__ import annotations

from typing import Any

from pytest_ecornn.selfcheck._function_layers import Gradients, Recomputed

CAUGHT_BY = "property: incoming_layouts"
CELL = "gru"


class Fault(Recomputed):
    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        return tuple(None if one is None else one.view(-1, one.shape[-1]).view(one.shape) for one in gradients)
