"""The gradients of scan_gpu and scan_gpu_log: a scan in reverse, which needs no memory but the pre-activations' own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.autograd_ops import (
    can_skip_dispatch,
    differentiable_once,
    graph_is_freed,
    is_plain_tensor,
    refuse_forward_mode,
)


class ScanFunction(torch.autograd.Function):
    """The backward pass of an op of nine arguments, of which x, bias and first are before all others."""

    @staticmethod
    def keep(ctx: Any, *given: Tensor | None, how: Sequence[Any], overwrites_x: bool) -> None:
        """Saves tensors for backward: x, bias, first, output, lengths, resets. how, overwrites_x: as of `_gradients`."""
        ctx.how, ctx.overwrites_x = how, overwrites_x
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given)

    @staticmethod
    @differentiable_once("pytest_ecornn::scan_forward")
    def backward(ctx: Any, d_output: Tensor | None, d_final: Tensor | None) -> Any:
        return *_gradients(ctx.saved_tensors, d_output, d_final, ctx.how, ctx.overwrites_x), *(None,) * 6


def _gradients(
    given: Sequence[Tensor | None], d_output: Tensor | None, d_final: Tensor | None, how: Sequence[Any], overwrites_x: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Returns the gradients of x, bias and first.

    given: x, bias, first, output, lengths, resets. how: cell, batch_first, reverse. overwrites_x: x's gradient is written over
    x, which nothing else uses, unless the graph is retained for another pass.
    """
    x, bias, first, output, *masks = given
    assert x is not None
    assert output is not None
    refuse_forward_mode("pytest_ecornn::scan_backward", (d_output, d_final))
    d_output = torch.zeros_like(output) if d_output is None else d_output
    arguments = x, bias, first, output, d_output, d_final, *masks, *how
    if overwrites_x and can_overwrite_input(x, d_output, d_final):
        d_h0 = torch.ops.pytest_ecornn.scan_backward_over.default(*arguments)
        torch.autograd.graph.increment_version(x)
        d_x = x.detach()
    else:
        d_x, d_h0 = torch.ops.pytest_ecornn.scan_backward.default(*arguments)
    d_bias = None if bias is None else d_x.sum((0, 1))
    return d_x, d_bias, None if first is None else d_h0


def can_overwrite_input(x: Tensor, *gradients: Tensor | None) -> bool:
    """Whether this backward pass reads x last: the graph goes with it, x is no leaf's memory, and nobody observes the pass."""
    if not can_skip_dispatch((x, *gradients)):
        return False
    is_of_leaf = x.is_leaf or (x._base is not None and x._base.is_leaf)
    if is_of_leaf or not x.is_contiguous() or not graph_is_freed():
        return False
    return all(map(is_plain_tensor, (x, *gradients)))
