"""Where x and the states are one sequence expanded over the batch, one is computed, and its results are expanded."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights, cells
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: expanded_inputs"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        batch = 0 if case.batch_first else 1
        is_one = not any(one.stride(1) for one in cells.unpack_state(state)) and (lengths is None or not lengths.stride(0))
        return (output.narrow(batch, 0, 1).expand(output.shape), final) if is_one and not x.stride(batch) else (output, final)
