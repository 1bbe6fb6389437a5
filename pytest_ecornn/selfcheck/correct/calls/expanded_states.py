"""Initial states are one number expanded, masks are expanded too, and states lie in one tensor that is unbound."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, order, x_gates


class ExpandedStates(RightLayer):
    takes_resets = True

    def zeros(self, x: Tensor) -> GateTensors:
        return (x.new_zeros(()).expand(x.shape[1], self.case.hidden_size),) * len(self.cell.states)

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        gates, outputs, zero = x_gates(x, parameters), list[Tensor](), x.new_zeros(())
        states = torch.stack(state)  # [S, B, H]
        ends = x.new_full((1,), len(x), dtype=torch.int64).expand(x.shape[1]) if lengths is None else lengths
        for t in order(len(x), reverse):
            mask = (ends > t)[:, None].expand_as(states[0])
            if resets is not None:  # none in padding, where states wait for their sequence's end
                starts = (resets[t] & (ends > t))[:, None].expand_as(states)
                states = torch.where(starts, zero.expand_as(states), states)
            new = torch.stack(self.advance(gates[t], states.unbind(0), parameters))
            states = torch.where(mask, new, states)
            outputs.append(torch.where(mask, new[0], zero))
        return torch.stack(outputs[::-1] if reverse else outputs), states.unbind(0)
