"""All is computed in float64, whatever the case's dtype, and rounded once at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, alive, kept, order, x_gates


class Float64Inside(RightLayer):
    def compute(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float64

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        gates, outputs = x_gates(x, parameters), dict[int, Tensor]()
        for t in order(len(x), reverse):
            mask = alive(lengths, t, x.shape[1])
            new = self.advance(gates[t], state, parameters)
            state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), state
