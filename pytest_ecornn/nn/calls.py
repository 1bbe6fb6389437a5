"""Calls of recurrent modules apart from their computation: packed sequences, states, autocast, active transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from pytest_ecornn.contract import State
from pytest_ecornn.reference.precision import is_autocast

Run = Callable[[Tensor, Any, Tensor], tuple[Tensor, Any]]  # x, initial states, lengths on the CPU -> output, final states


def run_packed(
    run: Run, packed: PackedSequence, hx: State, batch_first: bool, check: Callable[[Tensor], object] = lambda x: None
) -> tuple[PackedSequence, State]:
    """Runs sequences in the order of their lengths, as in `packed`; initial and final states are in the batch's order.

    check: called with the padded sequences before the states are put in order.
    """
    data, batch_sizes, order, order_back = packed
    x, lengths = pad_packed_sequence(PackedSequence(data, batch_sizes), batch_first)
    check(x)
    hx = hx if order is None else map_states(hx, lambda state: state.index_select(1, order))
    output, final = run(x, hx, lengths)
    output = pack_padded_sequence(output, lengths, batch_first).data
    final = final if order_back is None else map_states(final, lambda state: state.index_select(1, order_back))
    return PackedSequence(output, batch_sizes, order, order_back), final


def map_states(state: State, function: Callable[[Tensor], Tensor]) -> State:
    """The function of each of the states, None for none."""
    if state is None or isinstance(state, Tensor):
        return None if state is None else function(state)
    return tuple(map(function, state))


def autocast_of(device: torch.device) -> Callable[[Tensor], Tensor]:
    """Returns a function that casts as autocast casts its operators' arguments: float64 stays float64."""
    if not is_autocast(device):
        return lambda given: given
    dtype = torch.get_autocast_dtype(device.type)
    return lambda given: given if given.dtype == torch.float64 else given.to(dtype)


def missing_transform() -> str | None:
    """Names an active transform that the kernels, each in an autograd Function, do not support, or None."""
    if torch._C._are_functorch_transforms_active():
        return "no transforms of torch.func"
    return "no forward-mode gradient" if forward_ad._current_level >= 0 else None
