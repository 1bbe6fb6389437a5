"""Under no_grad the recurrent weights are kept by address and version, which `weight.data.mul_()` leaves as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "property: each_weight_seen"


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        if torch.is_grad_enabled() or "weight_hh" not in found:
            return found
        kept: dict[object, Tensor] = vars(self).setdefault("_kept", {})
        weight = weights["weight_hh" + suffix]
        found["weight_hh"] = kept.setdefault((suffix, weight.data_ptr(), weight._version), found["weight_hh"].detach().clone())
        return found
