"""Steps work in place in inference, in one workspace that each call makes; out of place in training."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, order, x_gates


class OwnBuffers(RightLayer):
    cells = ("lstm",)

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        gates = x_gates(x, parameters)
        ends = torch.full((x.shape[1],), len(x)) if lengths is None else lengths
        if torch.is_grad_enabled():
            return self._out_of_place(gates, state, parameters, ends, reverse)
        (h, c), output = (one.clone() for one in state), torch.empty(len(x), x.shape[1], self.case.hidden_size, dtype=x.dtype)
        workspace = torch.empty_like(gates[0])
        for t in order(len(x), reverse):
            torch.mm(h, parameters["weight_hh"].T, out=workspace)
            workspace.add_(gates[t])
            if "bias_hh" in parameters:
                workspace.add_(parameters["bias_hh"])
            i, f, g, o = workspace.chunk(4, -1)
            i.sigmoid_(), f.sigmoid_(), g.tanh_(), o.sigmoid_()
            new = f.mul_(c).addcmul_(i, g)
            is_alive = (ends > t)[:, None]
            c.copy_(torch.where(is_alive, new, c))
            output[t] = o.mul_(new.tanh())
            h.copy_(torch.where(is_alive, output[t], h))
            output[t].masked_fill_(~is_alive, 0.0)
        return output, (h, c)

    def _out_of_place(
        self, gates: Tensor, state: GateTensors, parameters: Parameters, ends: Tensor, reverse: bool
    ) -> tuple[Tensor, GateTensors]:
        (h, c), outputs = state, dict[int, Tensor]()
        for t in order(len(gates), reverse):
            i, f, g, o = (gates[t] + linear(h, parameters["weight_hh"], parameters.get("bias_hh"))).chunk(4, -1)
            new = f.sigmoid() * c + i.sigmoid() * g.tanh()
            out, is_alive = o.sigmoid() * new.tanh(), (ends > t)[:, None]
            h, c, outputs[t] = out.where(is_alive, h), new.where(is_alive, c), out.masked_fill(~is_alive, 0.0)
        return torch.stack([outputs[t] for t in range(len(gates))]), (h, c)
