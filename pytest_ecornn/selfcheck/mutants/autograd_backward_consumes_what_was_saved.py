"""The backward pass works in the memory of what was saved: a second one over the same graph finds it changed."""

from __future__ import annotations

from typing import Any

from pytest_ecornn.selfcheck._function_layers import Recomputed, Tensors

CAUGHT_BY = "property: backward_twice"


class Fault(Recomputed):
    def save(self, ctx: Any, tensors: Tensors) -> None:
        ctx.mine = tuple(one.clone() for one in tensors)

    def saved(self, ctx: Any) -> Tensors:
        copies = tuple(one.clone() for one in ctx.mine)
        ctx.mine[0].mul_(0.5)
        return copies
