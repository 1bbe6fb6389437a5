"""Biases are laid out anew where their sum has changed, which it has not where values change places."""

from __future__ import annotations

from pytest_ecornn.contract import Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value

CAUGHT_BY = "property: each_weight_seen"


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        known: dict[str, tuple[float, Parameters]] = vars(self).setdefault("_known", {})
        digest = round(sum(float(value.detach().double().sum()) for name, value in found.items() if "bias" in name), 4)
        if suffix not in known or known[suffix][0] != digest:
            known[suffix] = digest, {name: value.detach().clone() for name, value in found.items()}
        shown = known[suffix][1]
        return {name: with_value(value, shown[name]) if "bias" in name else value for name, value in found.items()}
