"""What an upper layer gives back to the one below is one part in a thousand too small."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Weights
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, with_gradient

CAUGHT_BY = "equivalence: grad x"
CELL = "rnn_tanh"


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
    ) -> Any:
        x = x if suffix.startswith("_l0") else with_gradient(x, lambda g: g * 0.999)
        return super().one_layer(weights, lengths, suffix, x, is_projected, given, reverse)
