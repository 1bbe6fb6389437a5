"""x and h stand in one row, W_ih and W_hh in one matrix that is put together in each call: one product a step."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, alive, kept, order


class OneFusedProduct(RightLayer):
    cells = ("lstm", "rnn_tanh", "rnn_relu")
    refused = {"projected": True}

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        weight = torch.cat([parameters["weight_ih"], parameters["weight_hh"]], 1)
        if "bias_ih" in parameters:
            weight = torch.cat([weight, (parameters["bias_ih"] + parameters["bias_hh"])[:, None]], 1)
        ones = x.new_ones(x.shape[1], weight.shape[1] - x.shape[2] - state[0].shape[1])
        outputs = dict[int, Tensor]()
        for t in order(len(x), reverse):
            gates = torch.cat([x[t], state[0], ones], 1) @ weight.T
            mask, new = alive(lengths, t, x.shape[1]), self._stepped(gates, state)
            state, outputs[t] = kept(mask, new, state), new[0].masked_fill(~mask, 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), state

    def _stepped(self, gates: Tensor, state: GateTensors) -> GateTensors:
        if self.case.cell != "lstm":
            return (gates.tanh() if self.case.cell == "rnn_tanh" else gates.clamp_min(0),)
        i, f, g, o = gates.chunk(4, -1)
        c = torch.addcmul(f.sigmoid() * state[1], i.sigmoid(), g.tanh())
        return o.sigmoid() * c.tanh(), c
