"""The output lies in the input's memory, where the sizes allow it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "unchanged"
CELL = "rnn_tanh"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        if case.training or output.numel() > x.numel():
            return output, final
        return x.copy_(output) if x.shape == output.shape else self._within(x, output), final

    def _within(self, x: Tensor, output: Tensor) -> Tensor:
        if not x.is_contiguous():
            return output
        return x.view(-1)[: output.numel()].view(output.shape).copy_(output)
