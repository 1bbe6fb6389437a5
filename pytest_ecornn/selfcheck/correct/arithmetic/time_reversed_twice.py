"""Time is turned round, each sequence about its own end, run from the last to the first, and turned back."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, order, x_gates


class TimeReversedTwice(RightLayer):
    _kept: dict[tuple[int, int], Tensor]

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        steps, batch = x.shape[:2]
        ends = torch.full((batch,), steps) if lengths is None else lengths
        times = torch.arange(steps)[:, None]
        turned = torch.where(times < ends, ends - 1 - times, times)[..., None]  # its own inverse
        gates = x_gates(x, parameters)
        gates, outputs = gates.gather(0, turned.expand_as(gates)), dict[int, Tensor]()
        for t in order(steps, not reverse):
            is_alive = (ends > t)[:, None]
            new = self.advance(gates[t], state, parameters)
            state = tuple(a.where(is_alive, b) for a, b in zip(new, state, strict=True))
            outputs[t] = new[0].masked_fill(~is_alive, 0.0)
        output = torch.stack([outputs[t] for t in range(steps)])
        return output.gather(0, turned.expand_as(output)), state
