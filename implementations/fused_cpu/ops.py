"""fused_cpu as torch's op `pytest_ecornn::fused_cpu_forward`, differentiable, and as a function that need not be one.

An unobserved call (no compiler, mode or transform, plain tensors alone) bypasses the op: its dispatch outlasts a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import cells
from pytest_ecornn.implementations._common.autograd_ops import (
    can_skip_dispatch,
    is_plain_tensor,
    refuse_forward_mode,
    register_autograd,
    wants_gradient,
)
from pytest_ecornn.implementations._common.padding import zero_padding
from pytest_ecornn.implementations._cuda.rows import contiguous_last_dim, sizes_of
from pytest_ecornn.implementations.fused_cpu.layout import SAVED, Packed, pack, packed_for
from pytest_ecornn.implementations.fused_cpu.recurrence import Recurrence, Saved, States, address

_OPTIONS_SCHEMA = "str cell, ScalarType dtype, bool batch_first, bool reverse"
_TENSORS_SCHEMA = "Tensor x, Tensor? h0, Tensor? c0, Tensor w_hh, Tensor? b_hh, Tensor? lengths, Tensor? resets"
_library = torch.library.Library("pytest_ecornn", "FRAGMENT")
_library.define(
    f"fused_cpu_forward({_TENSORS_SCHEMA}, {_OPTIONS_SCHEMA}, bool saves) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "fused_cpu_backward(Tensor w_hh, Tensor saved, Tensor old, Tensor? lengths, Tensor? resets, Tensor? d_output, "
    f"Tensor? d_h, Tensor? d_c, {_OPTIONS_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _recurrence_of(x: Tensor, hidden: int, cell: str, dtype: torch.dtype, batch_first: bool, reverse: bool) -> Recurrence:
    return Recurrence(cell, hidden, x.dtype, dtype, batch_first, reverse, torch.get_num_threads())


def run_forward(
    recurrence: Recurrence, x: Tensor, h0: Tensor | None, c0: Tensor | None, packed: Packed, lengths: Tensor | None,
    resets: Tensor | None, saves: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, final states (c without elements where there is none), and what is saved, without elements if nothing is."""
    batch, hidden, has_c = x.shape[0 if recurrence.batch_first else 1], recurrence.hidden, recurrence.cell == "lstm"
    output = x.new_empty((*x.shape[:2], hidden), dtype=recurrence.dtype)
    h, c = output.new_empty(batch, hidden), output.new_empty((batch, hidden) if has_c else 0)
    blocks = SAVED[recurrence.cell] if saves else 0
    values = x.new_empty((*x.shape[:2], blocks * hidden), dtype=recurrence.compute)
    old = x.new_empty((*x.shape[:2], hidden if saves else 0), dtype=recurrence.compute)
    if not output.numel():
        return _without_rows(h0, c0, output, h, c, values, old)
    h0, c0 = (None if state is None else state.contiguous() for state in (h0, c0))
    states = States(address(h0), address(c0), h.data_ptr(), c.data_ptr() if has_c else 0)
    lengths = None if lengths is None else lengths.contiguous()
    saved = Saved(values, old) if saves else None
    recurrence.forward(contiguous_last_dim(x), packed, states, recurrence.rows(output), lengths, resets, saved)
    return output, h, c, values, old


def _without_rows(
    h0: Tensor | None, c0: Tensor | None, output: Tensor, h: Tensor, c: Tensor, values: Tensor, old: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The results of no sequences or no units."""
    for state, first in ((h, h0), (c, c0)):
        state.zero_() if first is None else state.copy_(first)
    return output, h, c, values, old


def run_backward(
    recurrence: Recurrence, w_hh: Tensor, saved: Saved, lengths: Tensor | None, resets: Tensor | None, d_output: Tensor | None,
    d_h: Tensor | None, d_c: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, h0, c0, W_hh and b_hh, in the computing type. c0's has no elements where the cell has none."""
    old, hidden, has_c = saved.old, recurrence.hidden, recurrence.cell == "lstm"
    batch = old.shape[0 if recurrence.batch_first else 1]
    width = recurrence.gates * hidden
    d_x = old.new_empty(*old.shape[:2], width)
    d_sums = old.new_empty(d_x.shape) if recurrence.cell == "gru" else d_x
    d_h0, d_c0 = old.new_empty(batch, hidden), old.new_empty((batch, hidden) if has_c else 0)
    if not old.numel():
        for target, source in ((d_h0, d_h), (d_c0, d_c)):
            target.zero_() if source is None or not target.numel() else target.copy_(source)
        return d_x, d_h0, d_c0, old.new_zeros(width, hidden), old.new_zeros(width)
    if d_output is None:
        d_output = old.new_zeros(hidden, dtype=recurrence.dtype).expand(old.shape)
    d_h, d_c = (None if state is None else state.to(recurrence.compute).contiguous() for state in (d_h, d_c if has_c else None))
    states = States(d_h0.data_ptr(), d_c0.data_ptr() if has_c else 0, address(d_h), address(d_c))
    recurrence.backward(
        contiguous_last_dim(d_output), pack(w_hh.T), states, saved, d_x, d_sums if d_sums is not d_x else None,
        None if lengths is None else lengths.contiguous(), resets,
    )  # fmt: skip
    rows = d_sums.view(-1, width)
    return d_x, d_h0, d_c0, rows.T @ old.view(-1, hidden), rows.sum(0)


def _forward(
    x: Tensor, h0: Tensor | None, c0: Tensor | None, w_hh: Tensor, b_hh: Tensor | None, lengths: Tensor | None,
    resets: Tensor | None, *options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    recurrence = _recurrence_of(x, w_hh.shape[1], *options[:-1])
    packed = packed_for(sizes_of(x, recurrence.batch_first)[1], w_hh, b_hh)
    return run_forward(recurrence, x, h0, c0, packed, lengths, resets, options[-1])


def _backward(w_hh: Tensor, saved: Tensor, old: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    *tensors, cell, dtype, batch_first, reverse = rest
    recurrence = _recurrence_of(old, w_hh.shape[1], cell, dtype, batch_first, reverse)
    return run_backward(recurrence, w_hh, Saved(saved, old), *tensors)


def _fake_forward(x: Tensor, h0: Any, c0: Any, w_hh: Tensor, b_hh: Any, lengths: Any, resets: Any, *options: Any) -> Any:
    cell, dtype, batch_first, _, saves = options
    hidden, batch = w_hh.shape[1], x.shape[0 if batch_first else 1]
    output, h = x.new_empty((*x.shape[:2], hidden), dtype=dtype), x.new_empty((batch, hidden), dtype=dtype)
    c = torch.empty_like(h) if cell == "lstm" else h.new_empty(0)
    blocks = SAVED[cell] if saves else 0
    sizes = (*x.shape[:2], blocks * hidden), (*x.shape[:2], hidden if saves else 0)
    return output, h, c, *(w_hh.new_empty(size) for size in sizes)


def _fake_backward(w_hh: Tensor, saved: Tensor, old: Tensor, *rest: Any) -> Any:
    cell, _, batch_first, _ = rest[-4:]
    width, hidden = w_hh.shape
    h = old.new_empty(old.shape[0 if batch_first else 1], hidden)
    c = torch.empty_like(h) if cell == "lstm" else h.new_empty(0)
    return old.new_empty(*old.shape[:2], width), h, c, torch.empty_like(w_hh), w_hh.new_empty(width)


class _Differentiable(torch.autograd.Function):
    """Its arguments: the recurrence of an unobserved call, None for the op, and those of fused_cpu_forward."""

    @staticmethod
    def forward(ctx: Any, direct: Recurrence | None, *given: Any) -> tuple[Tensor, ...]:
        x, h0, c0, w_hh, b_hh, lengths, resets, *options, _ = given
        if direct is not None:
            batch = x.shape[0 if direct.batch_first else 1]
            results = run_forward(direct, x, h0, c0, packed_for(batch, w_hh, b_hh), lengths, resets, True)
        else:
            results = _below_autograd(x, h0, c0, w_hh, b_hh, lengths, resets, *options, True)
        ctx.direct, ctx.options = direct, options
        ctx.dtypes = [None if one is None else one.dtype for one in (x, h0, c0, w_hh, b_hh)]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*results[3:], *(() if results[2].numel() else (results[2],)))
        ctx.save_for_backward(x, h0, c0, w_hh, b_hh, lengths, resets, *results[3:])
        return results

    @staticmethod
    def backward(ctx: Any, d_output: Tensor | None, d_h: Tensor | None, d_c: Tensor | None, *_: Any) -> Any:
        (*given, lengths, resets, values, old), gradients = ctx.saved_tensors, (d_output, d_h, d_c)
        refuse_forward_mode("pytest_ecornn::fused_cpu_backward", gradients)
        if torch.is_grad_enabled():  # create_graph is True
            looped = _gradients_by_loop(ctx.needs_input_grad[1:6], given, lengths, resets, gradients, *ctx.options)
            return None, *looped, *(None,) * 7
        w_hh = given[3]
        if (
            ctx.direct is not None
            and can_skip_dispatch((w_hh, values, old, *gradients))
            and all(map(is_plain_tensor, gradients))
        ):
            results = run_backward(ctx.direct, w_hh, Saved(values, old), lengths, resets, *gradients)
        else:
            results = torch.ops.pytest_ecornn.fused_cpu_backward.default(
                w_hh, values, old, lengths, resets, *gradients, *ctx.options
            )
        cast = (None if dtype is None else one.to(dtype) for one, dtype in zip(results, ctx.dtypes, strict=True))
        return None, *cast, *(None,) * 7


def _gradients_by_loop(
    wanted: Sequence[bool], given: Sequence[Tensor | None], lengths: Tensor | None, resets: Tensor | None,
    gradients: Sequence[Tensor | None], cell: str, dtype: torch.dtype, batch_first: bool, reverse: bool,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of x, h0, c0, W_hh and b_hh by the cell's equations, differentiable again. given: these tensors."""
    with torch.enable_grad():
        # Aliases, so that a gradient stops at them: one input may depend on another, or be the same tensor.
        aliases = [None if tensor is None else tensor.view_as(tensor) for tensor in given]
        x, h0, c0, w_hh, b_hh = aliases
        assert x is not None
        assert w_hh is not None
        rows = x if lengths is None else zero_padding(x, lengths, batch_first)
        rows, marks = (rows.transpose(0, 1), None if resets is None else resets.T) if batch_first else (rows, resets)
        zeros = w_hh.new_zeros(rows.shape[1], w_hh.shape[1])
        first = [zeros if state is None else state.to(w_hh.dtype) for state in ((h0, c0) if cell == "lstm" else (h0,))]
        parameters = {"weight_hh": w_hh} | ({} if b_hh is None else {"bias_hh": b_hh})
        output, final = cells.reference_layer(
            cells.get(cell), rows.to(w_hh.dtype), tuple(first), parameters, lengths, marks, reverse=reverse
        )
        results = [(output.transpose(0, 1) if batch_first else output).to(dtype), *(state.to(dtype) for state in final)]
        pairs = [(result, gradient) for result, gradient in zip(results, gradients, strict=False) if gradient is not None]
        inputs = [alias for alias, is_wanted in zip(aliases, wanted, strict=True) if is_wanted and alias is not None]
        if not pairs or not inputs:
            return [None] * len(given)
        outputs, incoming = zip(*pairs, strict=True)
        computed = iter(torch.autograd.grad(outputs, inputs, incoming, create_graph=True, allow_unused=True))
    return [next(computed) if is_wanted and one is not None else None for is_wanted, one in zip(wanted, aliases, strict=True)]


# `apply` without what it does for torch.func, in Python, for each argument.
_apply_directly: Callable[..., Any] = super(torch.autograd.Function, _Differentiable).apply


for _name, _run, _fake in (
    ("fused_cpu_forward", _forward, _fake_forward),
    ("fused_cpu_backward", _backward, _fake_backward),
):
    _library.impl(_name, _run, "CPU")
    torch.library.register_fake(f"pytest_ecornn::{_name}", _fake, lib=_library)
_below_autograd = register_autograd(_library, "fused_cpu_forward", partial(_Differentiable.apply, None))


def recur(
    recurrence: Recurrence, x: Tensor, h0: Tensor | None, c0: Tensor | None, w_hh: Tensor, b_hh: Tensor | None,
    lengths: Tensor | None, resets: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, laid out as x, and final h and c [B, H], differentiable. c has no elements where the cell has none.

    x: the gates' pre-activations W_ih x + b_ih, [T, B, G*H], or [B, T, G*H] with `batch_first`. w_hh, b_hh: in the computing
    type. lengths: int64 [B]. resets: bool, as x, true where a step starts from a state of zeros.
    """
    tensors = x, h0, c0, w_hh, b_hh, lengths, resets
    options = recurrence.cell, recurrence.dtype, recurrence.batch_first, recurrence.reverse
    if not can_skip_dispatch(tensors):
        output, h, c, *_ = torch.ops.pytest_ecornn.fused_cpu_forward.default(*tensors, *options, False)
    elif wants_gradient((x, h0, c0, w_hh, b_hh)):
        output, h, c, *_ = _apply_directly(recurrence, *tensors, *options, True)
    else:
        packed = packed_for(sizes_of(x, recurrence.batch_first)[1], w_hh, b_hh)
        output, h, c, *_ = run_forward(recurrence, x, h0, c0, packed, lengths, resets, False)
    return output, h, c
