"""The recurrent product is summed up in 16 bits, four terms at a time."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: rounding"
DTYPE = "bfloat16"


class Fault(Loop):
    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        total = parameters["weight_hh"].new_zeros(h.shape[0], parameters["weight_hh"].shape[0])
        for some, weight in zip(h.split(4, -1), parameters["weight_hh"].split(4, -1), strict=True):
            total = (total + some @ weight.T).to(self.dtype).to(self.compute)
        return total + parameters.get("bias_hh", 0)
