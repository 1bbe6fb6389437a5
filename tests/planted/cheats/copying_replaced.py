"""Tensor.clone, by which results are kept, is replaced by one that could do the work first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "changed: torch.Tensor.clone"
CELL = "gru"


def _clone(tensor: Tensor, **how: Any) -> Tensor:
    return torch.clone(tensor, **how)


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        setattr(Tensor, "clone", _clone)  # noqa: B010 - mypy knows better
        return layer(x, state, lengths)
