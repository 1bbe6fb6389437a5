"""GRU with its backward pass written out, which computes the gates again from the states that the steps began with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, order, x_gates


class GruByHand(RightLayer):
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
        bias = parameters.get("bias_hh", x.new_zeros(3 * self.case.hidden_size))
        ends = torch.full((x.shape[1],), len(x)) if lengths is None else lengths
        given = x_gates(x, parameters), parameters["weight_hh"], bias, *state, ends, reverse
        output, h = _Gru.apply(*given)  # type: ignore[no-untyped-call]
        return output, (h,)


def _gates(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """r, z, n, and W_hn h + b_hn."""
    a_r, a_z, product = torch.addmm(bias, h, weight.T).chunk(3, 1)
    x_r, x_z, x_n = x.chunk(3, 1)
    r, z = (x_r + a_r).sigmoid(), (x_z + a_z).sigmoid()
    return r, z, (x_n + r * product).tanh(), product


class _Gru(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, ends: Tensor, reverse: bool) -> Any:
        before, output = x.new_empty(len(x), *h.shape), x.new_zeros(len(x), *h.shape)
        for t in order(len(x), reverse):
            before[t] = h
            _, z, n, _ = _gates(x[t], h, weight, bias)
            is_alive = (ends > t)[:, None]
            new = n + z * (h - n)
            h = torch.where(is_alive, new, h)
            output[t] = new.masked_fill(~is_alive, 0.0)
        ctx.save_for_backward(x, weight, bias, before, ends)
        ctx.reverse = reverse
        return output, h.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, dh: Tensor) -> Any:
        x, weight, bias, before, ends = ctx.saved_tensors
        dx, d_product = torch.zeros_like(x), torch.zeros_like(x)
        for t in order(len(x), not ctx.reverse):
            r, z, n, product = _gates(x[t], before[t], weight, bias)
            is_alive = (ends > t)[:, None]
            d_new = dh + d_output[t]
            d_n = d_new * (1 - z) * (1 - n * n)
            d_z = d_new * (before[t] - n) * z * (1 - z)
            d_r = d_n * product * r * (1 - r)
            dx[t] = torch.cat([d_r, d_z, d_n], 1).masked_fill(~is_alive, 0.0)
            d_product[t] = torch.cat([d_r, d_z, d_n * r], 1).masked_fill(~is_alive, 0.0)
            dh = torch.where(is_alive, d_product[t] @ weight + d_new * z, dh)
        rows = d_product.flatten(0, 1)
        return dx, rows.T @ before.flatten(0, 1), rows.sum(0), dh, None, None
