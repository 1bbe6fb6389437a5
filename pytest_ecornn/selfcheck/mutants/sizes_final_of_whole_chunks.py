"""The final state is that of the chunk before where the steps fill the chunks exactly."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract import Weights
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: final h"
CELL = "gru"
LANES = 8
STEPS_PER_LANE = 3


class Fault(Loop):
    chunk = LANES * STEPS_PER_LANE

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
        output, final = super().one_layer(weights, lengths, suffix, x, is_projected, given, reverse)
        if self.case.steps % self.chunk == 0 and self.case.steps > self.chunk and lengths is None and not reverse:
            late = output.transpose(0, 1) if self.case.batch_first else output
            final = (late[-1 - self.chunk].to(final[0].dtype), *final[1:])
        return output, final
