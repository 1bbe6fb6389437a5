"""Recurrent weights are read from the start of their storage: wrong where they are a part of a flat buffer."""

from __future__ import annotations

import torch

from pytest_ecornn.contract import Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value

CAUGHT_BY = "property: each_weight_seen"
CELL = "rnn_tanh"


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        weight = weights["weight_hh" + suffix].detach()
        read = torch.as_strided(weight, weight.shape, weight.stride(), 0).to(self.compute)
        found["weight_hh"] = with_value(found["weight_hh"], read)
        return found
