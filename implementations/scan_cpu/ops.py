"""scan_cpu as torch's op `pytest_ecornn::scan_cpu_forward`, differentiable, and as a function that need not be one.

An unobserved call (no compiler, mode or transform, plain tensors alone) bypasses the op: torch's dispatcher, to and from
Python, takes longer than a short scan.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import cells
from pytest_ecornn.implementations._common.autograd_ops import (
    can_skip_dispatch,
    differentiable_once,
    is_plain_tensor,
    refuse_forward_mode,
    register_autograd,
    register_vmap,
    wants_gradient,
)
from pytest_ecornn.implementations._common.padding import is_padding
from pytest_ecornn.implementations._cuda.rows import contiguous_last_dim, sizes_of
from pytest_ecornn.implementations.scan_cpu.compiled_scan import Scan, make_plan

_MASKS = "Tensor? lengths, Tensor? resets"
_OPTIONS_SCHEMA = "str cell, ScalarType dtype, bool batch_first, bool reverse"
_library = torch.library.Library("pytest_ecornn", "FRAGMENT")
_library.define(
    f"scan_cpu_forward(Tensor x, Tensor? first, {_MASKS}, {_OPTIONS_SCHEMA}, bool saves) -> (Tensor, Tensor, Tensor)"
)
_library.define(
    f"scan_cpu_backward(Tensor x, Tensor? first, Tensor kept, {_MASKS}, Tensor? d_output, Tensor? d_final, {_OPTIONS_SCHEMA})"
    " -> (Tensor, Tensor)"
)


def _scan_of(x: Tensor, cell: str, dtype: torch.dtype, batch_first: bool, reverse: bool) -> Scan:
    threads = torch.get_num_threads()
    plan = make_plan(*sizes_of(x, batch_first), x.shape[2] // _gates_of(cell), threads)
    return Scan(cell, x.dtype, dtype, batch_first, reverse, threads, plan)


def _gates_of(cell: str) -> int:
    return len(cells.get(cell).gates)


def _forward(
    x: Tensor, first: Tensor | None, lengths: Tensor | None, resets: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state, and the output before it was rounded where backward needs it, else without elements."""
    *how, saves = options
    if not sizes_of(x, how[2])[1]:  # no sequences
        return _fake_forward(x, first, lengths, resets, *options)
    output, final, kept = _scan_of(x, *how).forward(contiguous_last_dim(x), first, lengths, resets, saves)
    if kept is output:
        return output, final, output.new_empty(0)
    if lengths is not None:  # steps after the end, which nobody wrote
        batch_first = how[2]
        kept.masked_fill_(is_padding(lengths, kept.shape[1 if batch_first else 0], batch_first), 0)
    return output, final, kept


def _backward(
    x: Tensor, first: Tensor | None, kept: Tensor, lengths: Tensor | None, resets: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor]:
    d_output, d_final, *how = rest
    if not sizes_of(x, how[2])[1]:
        return _fake_backward(x, first, kept, lengths, resets, *rest)
    return _scan_of(x, *how).backward(contiguous_last_dim(x), first, kept, lengths, resets, d_output, d_final)


def _fake_forward(x: Tensor, first: Tensor | None, lengths: Any, resets: Any, *options: Any) -> tuple[Tensor, Tensor, Tensor]:
    cell, dtype, batch_first, _, saves = options
    hidden, batch = x.shape[2] // _gates_of(cell), x.shape[0 if batch_first else 1]
    compute = torch.promote_types(dtype, torch.float32)
    kept = (*x.shape[:2], hidden) if saves and compute != dtype else (0,)
    output = x.new_empty((*x.shape[:2], hidden), dtype=dtype)
    return output, x.new_empty((batch, hidden), dtype=dtype), x.new_empty(kept, dtype=compute if saves else dtype)


def _fake_backward(x: Tensor, first: Tensor | None, kept: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, hidden = x.shape[0 if rest[-2] else 1], kept.shape[2]
    return x.new_empty(x.shape), x.new_empty((batch, hidden), dtype=torch.promote_types(rest[-3], torch.float32))


class _Differentiable(torch.autograd.Function):
    """Its arguments: the scan of an unobserved call, None for the op, and those of scan_cpu_forward."""

    @staticmethod
    def forward(ctx: Any, direct: Scan | None, x: Tensor, first: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
        lengths, resets, *how, _ = rest
        if direct is not None:
            output, final, kept = direct.forward(x, first, lengths, resets, training=True)
            results: tuple[Tensor, ...] = output, final
        else:
            results = output, _, kept = _below_autograd(x, first, lengths, resets, *how, True)
            ctx.mark_non_differentiable(kept)
            kept = kept if kept.numel() else output
        ctx.direct, ctx.how = direct, how
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, first, kept, lengths, resets)
        return results

    @staticmethod
    @differentiable_once("pytest_ecornn::scan_cpu_forward")
    def backward(ctx: Any, d_output: Tensor | None, d_final: Tensor | None, *_: Any) -> Any:
        saved, gradients = ctx.saved_tensors, (d_output, d_final)
        refuse_forward_mode("pytest_ecornn::scan_cpu_backward", gradients)
        if ctx.direct is not None and can_skip_dispatch((*saved, *gradients)) and all(map(is_plain_tensor, gradients)):
            d_x, d_first = ctx.direct.backward(*saved, *gradients)
        else:
            d_x, d_first = torch.ops.pytest_ecornn.scan_cpu_backward.default(*saved, *gradients, *ctx.how)
        first = saved[1]
        return None, d_x, None if first is None else d_first.to(first.dtype), *(None,) * 7


# `apply` without what it does for torch.func, in Python, for each argument.
_apply_directly: Callable[..., Any] = super(torch.autograd.Function, _Differentiable).apply


for _name, _run, _fake in (("scan_cpu_forward", _forward, _fake_forward), ("scan_cpu_backward", _backward, _fake_backward)):
    _library.impl(_name, _run, "CPU")
    torch.library.register_fake(f"pytest_ecornn::{_name}", _fake, lib=_library)
    register_vmap(_library, _name)
_below_autograd = register_autograd(_library, "scan_cpu_forward", partial(_Differentiable.apply, None))


def scan_by_op(
    x: Tensor, first: Tensor | None, lengths: Tensor | None, resets: Tensor | None, cell: str, dtype: torch.dtype,
    batch_first: bool, reverse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output [.., H] of `dtype`, laid out as x, and final state [B, H], differentiable once.

    x: the gates' pre-activations, [T, B, G*H], or [B, T, G*H] with `batch_first`, on a CPU. first: [B, H], None for zeros.
    lengths: int64 [B]. resets: bool [T, B] or [B, T], as x, true where a step starts from a state of zeros. reverse: last step
    first.
    """
    output, final, _ = torch.ops.pytest_ecornn.scan_cpu_forward.default(
        x, first, lengths, resets, cell, dtype, batch_first, reverse, False
    )
    return output, final


def scan(
    how: Scan, x: Tensor, first: Tensor | None, lengths: Tensor | None, resets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`scan_by_op`, by the plan of `how` where nobody observes the call."""
    given, options = (x, first, lengths, resets), (how.cell, how.dtype, how.batch_first, how.reverse)
    if not can_skip_dispatch(given):
        return scan_by_op(*given, *options)
    x = contiguous_last_dim(x)
    if wants_gradient((x, first)):
        output, final = _apply_directly(how, x, first, lengths, resets, *options, True)
        return output, final
    return how.forward(x, first, lengths, resets)[:2]
