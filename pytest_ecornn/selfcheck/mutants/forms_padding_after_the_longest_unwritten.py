"""The loop ends with the longest sequence, and the steps after it are never written."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "poison"
CELL = "gru"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        longest = case.steps if lengths is None else int(lengths.max())
        if longest == case.steps:
            return output, final
        time = 1 if case.batch_first else 0
        written = output.narrow(time, 0, longest)
        after = torch.empty_like(output.narrow(time, longest, case.steps - longest))
        return torch.cat([written, after], time), final
