"""Work goes to a stream of its own, which waits for the caller's; of callers' streams only the default one waits for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "property: current_stream"
CELL = "gru"
DEVICE = "cuda"


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        side, caller = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(caller)
        with torch.cuda.stream(side):
            results = layer(x, state, lengths)
        if caller == torch.cuda.default_stream():
            caller.wait_stream(side)
        return results
