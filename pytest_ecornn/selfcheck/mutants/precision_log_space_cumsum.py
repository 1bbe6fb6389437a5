"""The scan sums logarithms up over all of time, so that the error of long sequences is that of large sums."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pytest_ecornn.contract import Case, Weights
from pytest_ecornn.contract.cells import GateTensors, positive
from pytest_ecornn.selfcheck._correct_layers import Loop

CAUGHT_BY = "equivalence: rounding"
CELL = "mingru_positive"


class Fault(Loop):
    def unsupported(self, case: Case, device: torch.device) -> str | None:
        plain = not (case.ragged or case.bidirectional or case.has_state)
        return super().unsupported(case, device) if plain else "begins at zero, in one direction, without lengths"

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
        time = 1 if self.case.batch_first else 0
        gates = x.to(self.compute)
        z, candidate = (gates if is_projected else self.x_gates(gates, self.parameters(weights, suffix))).chunk(2, -1)
        keep = torch.cumsum(logsigmoid(-z), time)
        h = torch.exp(keep + torch.logcumsumexp(logsigmoid(z) + torch.log(positive(candidate)) - keep, time)).to(self.dtype)
        return h, (h.select(time, -1),)
