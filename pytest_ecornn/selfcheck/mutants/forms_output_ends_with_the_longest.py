"""Padded sequences end with the longest one: the output has as many steps, not T."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "form"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        longest = case.steps if lengths is None else int(lengths.max())
        return output.narrow(1 if case.batch_first else 0, 0, longest), final
