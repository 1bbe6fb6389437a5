"""The candidate is a GPU's approximate tanh."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value

CAUGHT_BY = "equivalence: rounding"
CELL = "gru"
DEVICE = "cuda"
_INSTRUCTION = 'asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));'


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = (torch.sigmoid(a + b) for a, b in zip(x[:2], h[:2], strict=True))
        exact = torch.tanh(x[2] + r * h[2])
        n = with_value(exact, _approximate(x[2].detach() + r.detach() * h[2].detach()))
        return (n + z * (state[0] - n),)


def _approximate(x: Tensor) -> Tensor:
    import cupy  # type: ignore[import-not-found, unused-ignore]

    return torch.utils.dlpack.from_dlpack(_kernel()(cupy.from_dlpack(x.contiguous())))


@cache
def _kernel() -> Any:
    import cupy  # type: ignore[import-not-found, unused-ignore]

    return cupy.ElementwiseKernel("float32 x", "float32 y", _INSTRUCTION, "tanh_approx")
