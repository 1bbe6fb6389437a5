"""The initial state is copied to the workspace by one copy of its bytes, in the order of memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: layouts"
CELL = "gru"
DEVICE = "cuda"


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if isinstance(state, Tensor) and not state.requires_grad:
            workspace = torch.empty(state.shape, dtype=state.dtype, device=state.device)
            bytes_of_state = torch.empty(0, dtype=state.dtype, device=state.device).set_(state.untyped_storage())
            workspace.view(-1).copy_(bytes_of_state[state.storage_offset() :][: state.numel()])
            state = workspace
        return layer(x, state, lengths)
