"""Weights are seen as [G, H, I], and products are sums over named dimensions."""

from __future__ import annotations

import torch
from torch import Tensor, einsum

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, alive, kept, order


class EinsumByGate(RightLayer):
    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        hidden, outputs = self.case.hidden_size, dict[int, Tensor]()
        by_gate = {name: value.unflatten(0, (-1, hidden)) for name, value in parameters.items()}
        if "weight_ih" in by_gate:
            gates = einsum("ghi,tbi->tgbh", by_gate["weight_ih"], x)
            gates = gates + by_gate["bias_ih"][:, None] if "bias_ih" in by_gate else gates
        else:
            gates = x.unflatten(-1, (-1, hidden)).movedim(-2, 1)
        for t in order(len(x), reverse):
            h_gates: GateTensors = ()
            if self.cell.recurrent:
                product = einsum("ghk,bk->gbh", by_gate["weight_hh"], state[0])
                h_gates = (product + by_gate["bias_hh"][:, None] if "bias_hh" in by_gate else product).unbind(0)
            new = self.cell.step(gates[t].unbind(0), h_gates, state, parameters)
            mask = alive(lengths, t, x.shape[1])
            state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), state
