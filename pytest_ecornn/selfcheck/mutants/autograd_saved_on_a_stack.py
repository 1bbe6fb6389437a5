"""What forward saves goes on a stack of the layer: backward passes in the order of their calls get each other's."""

from __future__ import annotations

from typing import Any

from pytest_ecornn.selfcheck._function_layers import Recomputed, Tensors

CAUGHT_BY = "property: calls_interleaved"
CELL = "gru"


class Fault(Recomputed):
    def __init__(self) -> None:
        super().__init__()
        self._stack: list[Tensors] = []

    def save(self, ctx: Any, tensors: Tensors) -> None:
        self._stack.append(tensors)

    def saved(self, ctx: Any) -> Tensors:
        return self._stack.pop()
