"""All steps run as if there were no lengths; afterwards final states are gathered, and padding is cleared.

The reverse direction starts each sequence anew at its end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, order, x_gates


class MasksAppliedLate(RightLayer):
    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        gates, states, first = x_gates(x, parameters), dict[int, GateTensors](), state
        ends = torch.full((x.shape[1],), len(x)) if lengths is None else lengths
        for t in order(len(x), reverse):
            if reverse:
                is_first = (ends == t + 1)[:, None]
                state = tuple(torch.where(is_first, a, b) for a, b in zip(first, state, strict=True))
            state = states[t] = self.advance(gates[t], state, parameters)
        all_states = [torch.stack([states[t][k] for t in range(len(x))]) for k in range(len(state))]  # [T, B, H] each
        last = torch.zeros_like(ends) if reverse else ends - 1
        places = last[None, :, None].expand(1, -1, self.case.hidden_size)
        is_padding = (torch.arange(len(x))[:, None] >= ends)[..., None]
        return all_states[0].masked_fill(is_padding, 0.0), tuple(one.gather(0, places)[0] for one in all_states)
