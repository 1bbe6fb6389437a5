"""Weights are laid out anew when the layer is built, and changes in place are not seen."""

from __future__ import annotations

from torch import nn

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.reference.loop import ReferenceLoop

CAUGHT_BY = "equivalence: output"


class Fault(ReferenceLoop):
    def build(self, case: Case, weights: Weights) -> Layer:
        kept = {name: nn.Parameter(p.detach().clone(), p.requires_grad) for name, p in weights.items()}
        return super().build(case, Weights(kept, weights.masks))
