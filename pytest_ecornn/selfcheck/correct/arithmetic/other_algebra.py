"""GRU as (1 - z) n + z h, sigmoid as half of 1 + tanh, the weights of each gate split off and multiplied from the left."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, alive, order, x_gates


class OtherAlgebra(RightLayer):
    cells = ("gru",)

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        x_r, x_z, x_n = x_gates(x, parameters).chunk(3, -1)
        w_r, w_z, w_n = parameters["weight_hh"].split(self.case.hidden_size)
        bias = parameters.get("bias_hh", x.new_zeros(3 * self.case.hidden_size))
        b_r, b_z, b_n = bias.split(self.case.hidden_size)
        (h,), outputs = state, dict[int, Tensor]()
        for t in order(len(x), reverse):
            r = _sigmoid((w_r @ h.T).T + (x_r[t] + b_r))
            z = _sigmoid((w_z @ h.T).T + (x_z[t] + b_z))
            n = torch.tanh(torch.addcmul(x_n[t], r, (w_n @ h.T).T + b_n))
            mask = alive(lengths, t, x.shape[1])
            new = (1 - z) * n + z * h
            h, outputs[t] = torch.where(mask, new, h), new.masked_fill(~mask, 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), (h,)


def _sigmoid(x: Tensor) -> Tensor:
    return 0.5 + 0.5 * torch.tanh(0.5 * x)
