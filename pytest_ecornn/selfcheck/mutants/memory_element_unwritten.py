"""The last element of the output is never written."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "poison"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        written = torch.empty(output.numel(), dtype=output.dtype, device=output.device)
        return torch.cat([output.flatten()[:-1], written[-1:]]).view_as(output), final
