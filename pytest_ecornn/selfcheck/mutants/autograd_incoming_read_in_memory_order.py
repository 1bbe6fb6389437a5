"""The output's incoming gradient is read in the order of memory, as if it were contiguous."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.selfcheck._function_layers import Gradients, Recomputed

CAUGHT_BY = "property: incoming_layouts"


class Fault(Recomputed):
    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        return tuple(None if one is None else _dense(one) for one in gradients)


def _dense(gradient: Tensor) -> Tensor:
    there = gradient.untyped_storage().nbytes() // gradient.element_size() - gradient.storage_offset()
    if there < gradient.numel():
        return gradient.contiguous()
    return gradient.as_strided((gradient.numel(),), (1,)).view(gradient.shape)
