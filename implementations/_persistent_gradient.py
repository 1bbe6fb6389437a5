"""The gradients of persistent_gpu: a second persistent kernel for those of all pre-activations, then one product for W_hh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.implementations._differentiable import differentiable_once, register_gradient
from pytest_ecornn.implementations._gate_product import gate_product
from pytest_ecornn.implementations._persistent_op import library

_OPS = torch.ops.pytest_ecornn


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        _, weight, _, _, first_h, first_c, lengths, *ctx.how = given
        with torch._C._AutoDispatchBelowAutograd():
            *results, kept, cells = _OPS.persistent_forward_keeping.default(*given)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight, first_h, first_c, lengths, results[0], kept, cells)
        return tuple(results)

    @staticmethod
    @differentiable_once("pytest_ecornn::persistent_forward")
    def backward(ctx: Any, d_output: Tensor | None, d_final_h: Tensor | None, d_final_c: Tensor | None = None) -> Any:
        weight, first_h, first_c, lengths, output, kept, cells = ctx.saved_tensors
        d_output = torch.zeros_like(output) if d_output is None else d_output
        given = weight, kept, cells, output, d_output, first_h, first_c, d_final_h, d_final_c, lengths, *ctx.how
        d_gates, d_product, d_first_h, d_first_c = _OPS.persistent_backward.default(*given)
        of_weight, of_bias_ih, of_bias_hh, of_h, of_c = ctx.needs_input_grad[1:6]
        is_apart = d_product.numel() > 0 and (of_weight or of_bias_hh)
        d_h = torch.cat((d_gates[..., : -output.shape[-1]], d_product), -1) if is_apart else d_gates
        found = [d_gates, None, None, None, d_first_h if of_h else None, d_first_c if of_c else None]
        if of_weight:
            *_, batch_first, reverse, tf32 = ctx.how
            before = _states_before(output, first_h, lengths, batch_first, reverse)
            found[1] = gate_product(d_h.flatten(0, 1).T, before.flatten(0, 1).T, tf32)
        if of_bias_ih:
            found[2] = d_gates.sum((0, 1))
        if of_bias_hh:
            found[3] = found[2] if d_h is d_gates and of_bias_ih else d_h.sum((0, 1))
        return *found, *(None,) * 5


def _states_before(output: Tensor, first: Tensor | None, lengths: Tensor | None, batch_first: bool, reverse: bool) -> Tensor:
    """h before each step, laid out as the output; 0 where a sequence is over, as what is there may not be finite."""
    time = 1 if batch_first else 0
    initial = output.new_zeros(output.select(time, 0).shape) if first is None else first
    inner = output.narrow(time, 1, output.shape[time] - 1) if reverse else output.narrow(time, 0, output.shape[time] - 1)
    parts = (inner, initial.unsqueeze(time)) if reverse else (initial.unsqueeze(time), inner)
    found = torch.cat(parts, time)
    if lengths is None:
        return found
    steps = torch.arange(output.shape[time], device=lengths.device)
    steps = steps[None, :] - lengths[:, None] if batch_first else steps[:, None] - lengths
    if reverse:
        found = torch.where((steps == -1)[..., None], initial.unsqueeze(time), found)
    return found.masked_fill((steps >= 0)[..., None], 0)


register_gradient(library, "persistent_forward", _Differentiable)


def run(
    gates: Tensor, weight: Tensor, bias_ih: Tensor | None, bias_hh: Tensor | None, first: Sequence[Tensor],
    lengths: Tensor | None, cell: str, batch_first: bool, reverse: bool, tf32: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Output [.., H] laid out as gates and final states [B, H], differentiable once.

    gates: W_ih x without biases, [T, B, G*H], or [B, T, G*H] with `batch_first`, of bfloat16, float16 or float32, on a CUDA
    device. weight: W_hh, [G*H, H]. bias_ih, bias_hh: [G*H]. first: the initial states [B, H], () for zeros. lengths: int64 [B]
    on the same device. reverse: last step first. tf32: float32's products in TF32. Raises ValueError for other shapes, dtypes,
    cells and devices, and for H that does not fit; RuntimeError where an earlier launch is known to have given up, which a
    replayed graph does not ask.
    """
    states = 2 if cell == "lstm" else 1
    if len(first) not in (0, states):
        raise ValueError(f"expected no initial state of {cell}, or {states}, got {len(first)}")
    first_h, first_c = (*first, None, None)[:2]
    given = (gates, weight, bias_ih, bias_hh, first_h, first_c, lengths, cell, batch_first, reverse, tf32)
    return tuple(_OPS.persistent_forward.default(*given))
