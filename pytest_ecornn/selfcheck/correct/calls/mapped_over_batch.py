"""One sequence's step, mapped over the batch by torch.vmap."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, order, x_gates


class MappedOverBatch(RightLayer):
    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        def step(gates: Tensor, is_alive: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            new = self.advance(gates, state, parameters)
            kept = (torch.where(is_alive, a, b) for a, b in zip(new, state, strict=True))
            return torch.where(is_alive, new[0], 0.0), *kept

        gates, outputs, mapped = x_gates(x, parameters), dict[int, Tensor](), torch.vmap(step)
        ends = torch.full((x.shape[1],), len(x)) if lengths is None else lengths
        for t in order(len(x), reverse):
            outputs[t], *new = mapped(gates[t], ends > t, *state)
            state = tuple(new)
        return torch.stack([outputs[t] for t in range(len(x))]), state
