"""The cells of a positive candidate in logarithms, which are float64."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, x_gates


class LogSpace(RightLayer):
    cells = ("mingru_positive", "minlstm_positive")
    dtypes = ("float32", "bfloat16", "float16")
    refused = {"ragged": True}
    refuses_infinities = True

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        wide = x_gates(x, parameters).double()
        *gates, candidate = (wide.flip(0) if reverse else wide).chunk(len(self.cell.gates), -1)
        take = gates[0] if len(gates) == 1 else logsigmoid(gates[1]) - logsigmoid(gates[0])
        kept = torch.cumsum(logsigmoid(-take), 0)
        value = torch.where(candidate >= 0, (candidate.relu() + 0.5).log(), logsigmoid(candidate))
        carried = torch.logcumsumexp(logsigmoid(take) + value - kept, 0)
        states = ((carried + kept).exp() + kept.exp() * state[0].double()).to(x.dtype)
        return (states.flip(0) if reverse else states), (states[-1],)
