"""The gradient of x loses its last bits where it is stored, in place of being rounded."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract import Weights
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, cut, with_gradient

CAUGHT_BY = "equivalence: rounding"
CELL = "mingru"
DTYPE = "bfloat16"


class Fault(Loop):
    def one_layer(
        self,
        weights: Weights,
        lengths: Tensor | None,
        suffix: str,
        x: Tensor,
        is_projected: bool,
        given: GateTensors,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        wide = with_gradient(x.to(self.compute), cut)
        return super().one_layer(weights, lengths, suffix, wide, is_projected, given, reverse)
