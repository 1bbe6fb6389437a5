"""For inference the recurrent weights are packed once a case: a second layer of the same sizes gets the first one's."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract import Case, Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "property: layers_apart"
_packed: dict[tuple[Case, str], Tensor] = {}


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        if not self.case.training and "weight_hh" in found:
            found["weight_hh"] = _packed.setdefault((self.case, suffix), found["weight_hh"].detach().clone())
        return found
