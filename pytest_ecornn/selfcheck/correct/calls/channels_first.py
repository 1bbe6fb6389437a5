"""Channels come first, [H, B]: weights are multiplied from the left, and outputs are transposed views of what was computed."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import RECURRENT_CELLS, Parameters, RightLayer, order


class ChannelsFirst(RightLayer):
    cells = RECURRENT_CELLS

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        count, columns = len(self.cell.gates), x.permute(0, 2, 1)  # [T, I, B]
        gates = _product(parameters, "ih", columns) if "weight_ih" in parameters else columns
        state, outputs = tuple(one.T for one in state), dict[int, Tensor]()
        for t in order(len(x), reverse):
            new = self.cell.step(gates[t].chunk(count), _product(parameters, "hh", state[0]).chunk(count), state, parameters)
            is_alive = torch.full((x.shape[1],), True) if lengths is None else lengths > t
            state = tuple(torch.where(is_alive, a, b) for a, b in zip(new, state, strict=True))
            outputs[t] = torch.where(is_alive, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]).permute(0, 2, 1), tuple(one.T for one in state)


def _product(parameters: Parameters, kind: str, columns: Tensor) -> Tensor:
    product = parameters[f"weight_{kind}"] @ columns
    return product + parameters[f"bias_{kind}"][:, None] if f"bias_{kind}" in parameters else product
