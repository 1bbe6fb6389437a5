"""LSTM with its backward pass written out: gates are saved, lengths are a mask on both ways, weights' gradients one product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, order, x_gates


class LstmByHand(RightLayer):
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
        if "bias_hh" in parameters:
            gates = gates + parameters["bias_hh"]
        ends = torch.full((x.shape[1],), len(x)) if lengths is None else lengths
        mask = torch.arange(len(x))[:, None] < ends  # [T, B]
        output, h, c = _Lstm.apply(gates, parameters["weight_hh"], *state, mask, reverse)  # type: ignore[no-untyped-call]
        return output, (h, c)


class _Lstm(Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, h: Tensor, c: Tensor, mask: Tensor, reverse: bool) -> Any:
        hidden = h.shape[1]
        acts, hs, cs = torch.empty_like(gates), gates.new_empty(len(gates), *h.shape), gates.new_empty(len(gates), *h.shape)
        output = gates.new_empty(len(gates), *h.shape)
        for t in order(len(gates), reverse):
            hs[t], cs[t] = h, c  # what the step starts from
            a = gates[t] + h @ weight.T
            act = torch.cat(
                [a[:, : 2 * hidden].sigmoid(), a[:, 2 * hidden : 3 * hidden].tanh(), a[:, 3 * hidden :].sigmoid()], 1
            )
            i, f, g, o = act.chunk(4, 1)
            new = f * c + i * g
            out, is_alive = o * new.tanh(), mask[t, :, None]
            acts[t], output[t] = act, out.where(is_alive, torch.zeros_like(out))
            h, c = torch.where(is_alive, out, h), torch.where(is_alive, new, c)
        ctx.save_for_backward(weight, acts, hs, cs, mask)
        ctx.reverse = reverse
        return output, h.clone(), c.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, dh: Tensor, dc: Tensor) -> Any:
        weight, acts, hs, cs, mask = ctx.saved_tensors
        d_gates = torch.zeros_like(acts)
        for t in order(len(acts), not ctx.reverse):
            (i, f, g, o), c, is_alive = acts[t].chunk(4, 1), cs[t], mask[t, :, None]
            tanh = (f * c + i * g).tanh()
            d_out = dh + d_output[t]
            d_new = dc + d_out * o * (1 - tanh * tanh)
            parts = d_new * g * i * (1 - i), d_new * c * f * (1 - f), d_new * i * (1 - g * g), d_out * tanh * o * (1 - o)
            d_gates[t] = torch.cat(parts, 1).masked_fill(~is_alive, 0.0)
            dh = torch.where(is_alive, d_gates[t] @ weight, dh)
            dc = torch.where(is_alive, d_new * f, dc)
        d_weight = d_gates.flatten(0, 1).T @ hs.flatten(0, 1)
        return d_gates, d_weight, dh, dc, None, None
