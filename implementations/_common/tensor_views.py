"""Views of tensors without gaps, computed once for a shape: few calls of torch, whose time is the host's."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.implementations._cuda.host.recorder import current_recorder, is_observed

_reinterpret: Any = getattr(torch._C._dynamo.guards, "_reinterpret_tensor", None)


class View(NamedTuple):
    """A view of a tensor without gaps. offset: in elements from its first."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def of(self, base: Tensor) -> Tensor:
        """Returns the view, in half the time where torch has a function for that which autograd does not record."""
        if _reinterpret is None or is_observed():
            return base.as_strided(self.shape, self.strides, base.storage_offset() + self.offset)
        view: Tensor = _reinterpret(base, self.shape, self.strides, self.offset)
        if (recorder := current_recorder()) is not None:
            recorder.view(base, view)
        return view


def halves(stacked: Tensor) -> tuple[Tensor, Tensor]:
    """Both parts of a tensor without gaps."""
    first, second = _half_views(stacked.shape)
    return first.of(stacked), second.of(stacked)


@lru_cache(maxsize=4096)
def _half_views(shape: torch.Size) -> tuple[View, View]:
    _, *sizes = shape
    strides = tuple(prod(sizes[place + 1 :]) for place in range(len(sizes)))
    return View((*sizes,), strides), View((*sizes,), strides, prod(sizes))
