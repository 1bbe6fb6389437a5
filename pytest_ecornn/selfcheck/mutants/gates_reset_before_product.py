"""The reset gate is applied to the state before the product, as in the GRU's first paper, not to the product."""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
CELL = "gru"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = torch.sigmoid(x[0] + h[0]), torch.sigmoid(x[1] + h[1])
        weight, bias = (parameters[n].chunk(3)[2] if n in parameters else None for n in ("weight_hh", "bias_hh"))
        assert weight is not None
        n = torch.tanh(x[2] + linear(r * state[0], weight, bias))
        return (n + z * (state[0] - n),)
