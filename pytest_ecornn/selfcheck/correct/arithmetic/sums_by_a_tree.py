"""Every product is made element by element and summed up in pairs, pairs of pairs and so on."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, alive, kept, order


class SumsByATree(RightLayer):
    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        count, outputs = len(self.cell.gates), dict[int, Tensor]()
        for t in order(len(x), reverse):
            gates = x[t] if "weight_ih" not in parameters else _product(x[t], parameters, "ih")
            h_gates = _product(state[0], parameters, "hh").chunk(count, -1) if self.cell.recurrent else ()
            new = self.cell.step(gates.chunk(count, -1), h_gates, state, parameters)
            mask = alive(lengths, t, x.shape[1])
            state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), state


def _product(x: Tensor, parameters: Parameters, kind: str) -> Tensor:
    addends = x[:, None, :] * parameters[f"weight_{kind}"]  # [B, G*H, I]
    while addends.shape[-1] > 1:
        addends = pad(addends, (0, addends.shape[-1] % 2)).unflatten(-1, (-1, 2)).sum(-1)
    product = addends.squeeze(-1)
    return product + parameters[f"bias_{kind}"] if f"bias_{kind}" in parameters else product
