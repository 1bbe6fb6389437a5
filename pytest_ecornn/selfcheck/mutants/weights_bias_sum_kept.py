"""The sum of the biases is laid out anew with W_hh alone: a bias that changes by itself is not seen."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract import Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value

CAUGHT_BY = "property: each_weight_seen"


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        known: dict[str, tuple[Tensor, Parameters]] = vars(self).setdefault("_known", {})
        if suffix not in known or not known[suffix][0].equal(found["weight_hh"]):
            biases = {name: value.detach().clone() for name, value in found.items() if "bias" in name}
            known[suffix] = found["weight_hh"].detach().clone(), biases
        return {name: with_value(value, known[suffix][1].get(name, value)) for name, value in found.items()}
