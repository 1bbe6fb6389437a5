"""The backward pass frees what was saved outside autograd's care, whether the graph is retained or not."""

from __future__ import annotations

from typing import Any

from pytest_ecornn.selfcheck._function_layers import Recomputed, Tensors

CAUGHT_BY = "property: backward_twice"
CELL = "gru"


class Fault(Recomputed):
    def save(self, ctx: Any, tensors: Tensors) -> None:
        ctx.mine = tensors

    def saved(self, ctx: Any) -> Tensors:
        mine: Tensors = ctx.mine
        del ctx.mine
        return mine
