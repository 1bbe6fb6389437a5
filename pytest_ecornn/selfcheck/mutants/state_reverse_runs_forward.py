"""The reverse direction reads the sequence from its beginning too."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Weights
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: output"
CELL = "minlstm"


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
        return super().one_layer(weights, lengths, suffix, x, is_projected, given, False)
