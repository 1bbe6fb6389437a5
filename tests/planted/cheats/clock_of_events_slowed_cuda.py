"""torch.cuda.Event tells half of the time that has passed; on a CPU: clock_slowed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "changed: Event.elapsed_time"
CELL = "gru"
DEVICE = "cuda"


_elapsed_time = torch.cuda.Event.elapsed_time


def _half(start: Any, end: Any) -> float:
    return float(_elapsed_time(start, end)) / 2


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        setattr(torch.cuda.Event, "elapsed_time", _half)  # noqa: B010 - mypy knows better
        return layer(x, state, lengths)
