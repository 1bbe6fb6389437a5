"""The loop over time begins at the output's gradient: where there is none, what the final states send back is lost."""

from __future__ import annotations

from typing import Any

import torch

from pytest_ecornn.selfcheck._function_layers import Gradients, Inputs, Recomputed

CAUGHT_BY = "property: unused_results"
CELL = "rnn_tanh"


class Fault(Recomputed):
    _has_output = True

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        self._has_output = gradients[0] is not None
        return gradients

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        return gradients if self._has_output else tuple(None if one is None else torch.zeros_like(one) for one in gradients)
