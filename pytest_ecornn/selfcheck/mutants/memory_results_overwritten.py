"""Every call returns its output in the same memory, so that the next call overwrites it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: fresh_results"


class Fault(AroundLoop):
    _buffer: Tensor | None = None

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        if self._buffer is None:
            self._buffer = torch.empty_like(output).detach()
        if case.training:
            output.data = self._buffer.copy_(output.detach())
            return output, final
        return self._buffer.copy_(output), final
