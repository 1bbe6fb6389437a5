"""Gradients are clamped to float16's range on their way back: wrong where a loss is scaled by 65,536."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_gradient

CAUGHT_BY = "property: incoming_sizes"
LARGEST = torch.finfo(torch.float16).max


def clamped(gradient: Tensor) -> Tensor:
    return gradient.clamp(-LARGEST, LARGEST)


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        return super().step(tuple(with_gradient(one, clamped) for one in x), h, state, parameters)
