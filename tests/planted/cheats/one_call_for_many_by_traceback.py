"""The callers, and the calls that they have prepared, are found through the traceback of an exception."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "asked: tb_frame"
CELL = "gru"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        try:
            raise LookupError
        except LookupError as error:
            trace: Any = error.__traceback__
        frame = trace.tb_frame
        while frame is not None and "prepared" not in frame.f_locals:
            frame = frame.f_back
        return layer(x, state, lengths)
