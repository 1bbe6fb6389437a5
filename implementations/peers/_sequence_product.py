"""W x^T for each sequence: pre-activations with time last, as a scan over contiguous time takes them, without a copy.

torch's matmul would multiply x W^T and return a view of it; this is a batched product, in the case's precision both ways.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.reference.precision import fp32_precision, whole_sums


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tf32: bool) -> Tensor:
        ctx.tf32 = tf32
        ctx.save_for_backward(x, weight)
        return _batched(weight.expand(len(x), -1, -1), x.mT, tf32)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x, weight), (of_x, of_weight, _) = ctx.saved_tensors, ctx.needs_input_grad
        d_x = _batched(gradient.mT, weight.expand(len(x), -1, -1), ctx.tf32) if of_x else None
        d_weight = _batched(gradient, x, ctx.tf32).sum(0, dtype=_wide(x)).to(x.dtype) if of_weight else None
        return d_x, d_weight, None


def _batched(a: Tensor, b: Tensor, tf32: bool) -> Tensor:
    with fp32_precision("matmul", "tf32" if tf32 else "ieee"), whole_sums(a.dtype):
        return torch.bmm(a, b)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def sequence_products(x: Tensor, weight: Tensor, tf32: bool) -> Tensor:
    """[B, T, I], [G*H, I] -> [B, G*H, T], contiguous."""
    found: Tensor = _Product.apply(x, weight, tf32)  # type: ignore[no-untyped-call]
    return found
