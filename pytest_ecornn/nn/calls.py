"""Calls of recurrent modules apart from their computation: lengths, packed sequences, states, dropout, active transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from pytest_ecornn.autotune.selection import no_data
from pytest_ecornn.contract import State
from pytest_ecornn.implementations._common.autograd_ops import can_skip_dispatch
from pytest_ecornn.nn.tracing import is_recorded, untraced

Run = Callable[[Tensor, Any, Tensor], tuple[Tensor, Any]]  # x, initial states, lengths -> output, final states
Key = TypeVar("Key")
Value = TypeVar("Value")


def store_bounded(entries: dict[Key, Value], most: int, key: Key, value: Value) -> None:
    """Stores an entry. Of more than `most` the oldest goes. Threads may share the entries."""
    while key not in entries and len(entries) >= most:
        with suppress(KeyError, RuntimeError):  # another thread has taken that one, or added one
            del entries[next(iter(entries))]
    entries[key] = value


def lengths_beside(input: Any, lengths: Any, batch_first: bool) -> Tensor:
    """The lengths of a padded input's sequences, int64 [B] without gaps on the input's device.

    lengths: [B] of any integers on any device, or a sequence of ints. What is on a GPU is not looked at, as the host would wait
    for it, and may be below 0 or above T. Raises ValueError for a packed input, another shape or dtype, and on a CPU for such.
    """
    if isinstance(input, PackedSequence):
        raise ValueError("expected no lengths beside a PackedSequence, which has its own")
    if input.dim() != 3:
        raise ValueError(f"expected an input of three dimensions beside lengths, got {tuple(input.shape)}")
    batch, steps = input.shape[:2] if batch_first else (input.shape[1], input.shape[0])
    own: Tensor = lengths if isinstance(lengths, Tensor) else torch.as_tensor(lengths)
    dtype = own.dtype
    with untraced():
        expected, shape = (input.shape[0 if batch_first else 1],), tuple(own.shape)
    if shape != expected or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        raise ValueError(f"expected lengths as {expected} of integers, got {shape} of {dtype}")
    own = own.to(torch.int64).contiguous()
    if torch.compiler.is_compiling() or is_recorded() or no_data(own) or torch._C._functorch.is_batchedtensor(own):
        return own.to(input.device, non_blocking=True).clamp(0, steps)
    own = own.cpu() if input.is_cpu else own
    if own.is_cpu and batch and not 0 <= int(own.min()) <= int(own.max()) <= steps:
        raise ValueError(f"expected lengths from 0 to {steps}, got {int(own.min())} to {int(own.max())}")
    own = own.pin_memory() if own.is_cpu and input.is_cuda else own
    return own.to(input.device, non_blocking=True)


def run_packed(
    run: Run, packed: PackedSequence, hx: State, batch_first: bool, check: Callable[[Tensor], object] = lambda x: None
) -> tuple[PackedSequence, State]:
    """Runs sequences in the order of their lengths, as in `packed`; initial and final states are in the batch's order.

    check: called with the padded sequences before the states are put in order.
    """
    data, batch_sizes, order, order_back = packed
    x, lengths, pack = _pad(data, batch_sizes, batch_first)
    check(x)
    hx = hx if order is None else map_states(hx, lambda state: state.index_select(1, order))
    output, final = run(x, hx, lengths)
    final = final if order_back is None else map_states(final, lambda state: state.index_select(1, order_back))
    return PackedSequence(pack(output), batch_sizes, order, order_back), final


def _pad(data: Tensor, batch_sizes: Tensor, batch_first: bool) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """Padded sequences, their lengths, and a function that packs as long ones.

    torch's functions launch several kernels for each length, and the gradients' as many again: these launch one.
    """
    if not can_skip_dispatch((data,)):
        x, lengths = pad_packed_sequence(PackedSequence(data, batch_sizes), batch_first)
        return x, lengths, lambda output: pack_padded_sequence(output, lengths, batch_first).data
    steps, batch = len(batch_sizes), int(batch_sizes[0])
    is_there = batch_sizes[:, None] > torch.arange(batch, device=batch_sizes.device)
    time, sequence = is_there.nonzero(as_tuple=True)
    outer, rows = ((batch, steps), sequence * steps + time) if batch_first else ((steps, batch), time * batch + sequence)
    lengths, rows = torch.cat((is_there.sum(0), rows)).to(data.device, non_blocking=True).split((batch, len(rows)))
    x = data.new_zeros(steps * batch, *data.shape[1:]).index_copy_(0, rows, data)
    return x.unflatten(0, outer), lengths, lambda output: _select_rows(output.flatten(0, 1), rows)


class _SelectRows(torch.autograd.Function):
    """Some rows of a matrix, each once, so that the gradient is a copy; that of `index_select` adds atomically."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.height = len(matrix)
        return matrix.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, d_rows: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return d_rows.new_zeros(ctx.height, d_rows.shape[1]).index_copy_(0, rows, d_rows), None


_select_rows: Callable[[Tensor, Tensor], Tensor] = _SelectRows.apply


def map_states(state: State, function: Callable[[Tensor], Tensor]) -> State:
    """The function of each of the states, None for none."""
    if state is None or isinstance(state, Tensor):
        return None if state is None else function(state)
    return tuple(map(function, state))


def run_layers(
    layers: Sequence[Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor]]], x: Tensor, first: Sequence[Tensor], p: float
) -> list[Tensor]:
    """The output and final states [L*D, B, H] of one layer after the other, between which elements are dropped.

    layers: called with x and their own initial states; one alone may stand for several. first: initial states of all layers,
    () for zeros. p: a probability.
    """
    if len(layers) == 1:
        return [*layers[0](x, first)]
    finals: list[Sequence[Tensor]] = []
    tracks = first[0].shape[0] // len(layers) if first else 0
    for number, run in enumerate(layers):
        x = dropout(x, p) if number else x
        x, *final = run(x, [state[number * tracks : (number + 1) * tracks] for state in first])
        finals.append(final)
    return [x, *map(torch.cat, zip(*finals, strict=True))]


def only_vmap_is_active() -> bool:
    """Whether the active transforms are of torch.vmap, for which the scans' ops have rules."""
    return is_in_vmap() and all(_vmap_levels()) and forward_ad._current_level < 0


def missing_transform() -> str | None:
    """Names an active transform that the kernels, each in an autograd Function, do not support, or None."""
    if torch._C._are_functorch_transforms_active():
        return "no transforms of torch.func"
    return "no forward-mode gradient" if forward_ad._current_level >= 0 else None


def decompose_in_transforms(function: Callable[..., Any], *given: Any) -> Any:
    """function(*given), by a loop over time under torch.func and in forward mode, where oneDNN and cuDNN do not run all.

    torch's recurrent functions have no batching rule: under torch.vmap they are decomposed below a level of gradients.
    """
    if torch.compiler.is_compiling() or missing_transform() is None:
        return function(*given)
    mkldnn, cudnn, levels = torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_enabled(), _vmap_levels()
    torch._C._set_mkldnn_enabled(False)
    torch._C._set_cudnn_enabled(cudnn and True not in levels)
    try:
        return torch.func.vjp(lambda _: function(*given), torch.zeros(()))[0] if levels[-1] else function(*given)
    finally:
        torch._C._set_mkldnn_enabled(mkldnn)
        torch._C._set_cudnn_enabled(cudnn)


def is_in_vmap() -> bool:
    return torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling() and True in _vmap_levels()


def _vmap_levels() -> list[bool]:
    """Whether each of the active transforms, the innermost last, is torch.vmap."""
    levels = torch._C._functorch.get_interpreter_stack() or []
    return [level.key() == torch._C._functorch.TransformType.Vmap for level in levels] or [False]
