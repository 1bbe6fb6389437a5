"""Sequences are sorted by length, as packed ones are, and the batch shrinks or grows from step to step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, order, x_gates


class SortedSequences(RightLayer):
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
        lengths = torch.full((batch,), steps) if lengths is None else lengths
        places = lengths.argsort(descending=True)
        gates, state = x_gates(x[:, places], parameters), tuple(one[places] for one in state)
        outputs: dict[int, Tensor] = {}
        for t in order(steps, reverse):
            count = int((lengths > t).sum())
            new = self.advance(gates[t, :count], tuple(one[:count] for one in state), parameters)
            state = tuple(torch.cat([a, b[count:]]) for a, b in zip(new, state, strict=True))
            outputs[t] = pad(new[0], (0, 0, 0, batch - count))
        back = places.argsort()
        return torch.stack([outputs[t] for t in range(steps)])[:, back], tuple(one[back] for one in state)
