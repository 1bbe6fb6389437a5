"""In inference the states are copied once an address: where one tensor is both, c overwrites h within the first step."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "property: same_state"


class Fault(Loop):
    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        states = super().first_state(x, given)
        if len(given) < 2 or torch.is_grad_enabled() or given[0].data_ptr() != given[1].data_ptr():
            return states
        return (states[0] * 0.5, states[1])
