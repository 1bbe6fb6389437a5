"""A contiguous incoming gradient is read from the start of its storage: wrong for a part of torch.cat's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.selfcheck._function_layers import Gradients, Recomputed

CAUGHT_BY = "property: incoming_layouts"


def read(gradient: Tensor) -> Tensor:
    rows = gradient.contiguous()
    return torch.as_strided(rows.detach(), rows.shape, rows.stride(), 0).clone()


class Fault(Recomputed):
    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        return tuple(None if one is None else read(one) for one in gradients)
