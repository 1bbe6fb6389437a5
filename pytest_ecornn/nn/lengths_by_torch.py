"""Padded sequences that have lengths by torch.nn, where the kernels do not run: RNN, LSTM and GRU.

On a CPU torch packs them. On other devices that would be to wait for the lengths, and a compiler cannot trace it: there torch
runs one layer and direction at a time on padded sequences, those in reverse turned around.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from pytest_ecornn.contract import State, cells
from pytest_ecornn.implementations._common.padding import is_padding
from pytest_ecornn.nn.calls import decompose_in_transforms, is_in_vmap, map_states, missing_transform

# Weights of one more input, which is 1 in the padding, by gates: LSTM's c stays as it is, and relu's h does not grow without
# bound. They outweigh all else in a sum. float16 has them, too.
_OF_PADDING = {"LSTM": (-3e4, 3e4, 0.0, 0.0), "RNN_RELU": (-3e4,)}


def run_by_torch(module: Any, x: Tensor, hx: State, lengths: Tensor) -> tuple[Tensor, State]:
    """Output, 0 in the padding, and final states, as a module's `forward` has them.

    x: [T, B, I], or [B, T, I] with `batch_first`. lengths: int64 [B] on x's device, on a CPU from 0 to T. Raises what torch.nn
    raises.
    """
    if x.numel() == 0:
        results: tuple[Tensor, State] = module._torch_class.forward(module, x, hx)  # which says what is wrong
        return results
    module._check(x, hx)
    if _can_pack(x):
        return run_packed(module._forward_by_torch, x, hx, lengths, module.batch_first)
    return _run_padded(module, x, hx, lengths)


def _can_pack(x: Tensor) -> bool:
    return x.is_cpu and not torch.compiler.is_compiling() and missing_transform() is None


def run_packed(
    run: Callable[[PackedSequence, State], tuple[PackedSequence, State]], x: Tensor, hx: State, lengths: Tensor,
    batch_first: bool,
) -> tuple[Tensor, State]:  # fmt: skip
    """On a CPU. A sequence of length 0, which torch does not pack, is run as one step on zeros, whose results are dropped."""
    is_empty = (lengths == 0)[:, None]
    rows, first = is_empty.unsqueeze(1 if batch_first else 0), hx
    has_empty = bool(is_empty.any())
    if has_empty:
        x, first = x.masked_fill(rows, 0), map_states(hx, lambda state: state.masked_fill(is_empty, 0))
    packed = pack_padded_sequence(x, lengths.clamp(min=1), batch_first, enforce_sorted=False)
    packed, final = run(packed, first)
    output, _ = pad_packed_sequence(packed, batch_first, total_length=x.shape[1 if batch_first else 0])
    if not has_empty:
        return output, final
    finals = cells.unpack_state(final)
    given = cells.unpack_state(hx) or tuple(map(torch.zeros_like, finals))
    kept = [torch.where(is_empty, state.to(own.dtype), own) for state, own in zip(given, finals, strict=True)]
    return output.masked_fill(rows, 0), tuple(kept) if len(kept) > 1 else kept[0]


def _run_padded(module: Any, x: Tensor, hx: State, lengths: Tensor) -> tuple[Tensor, State]:
    """On any device, without reading the lengths."""
    x = x.transpose(0, 1) if module.batch_first else x
    steps, directions = x.shape[0], 1 + module.bidirectional
    ends = lengths.clamp(0, steps)[:, None]  # [B, 1]
    padding, times = is_padding(ends[:, 0], steps, batch_first=False), torch.arange(steps, device=x.device)[:, None, None]
    turned, last = torch.where(padding, times, ends - 1 - times), (ends - 1).clamp(min=0)[None]
    x, states = torch.where(padding, 0, x), cells.unpack_state(hx) or zero_states(module, x)
    states = [state + x.new_zeros(()) for state in states] if is_in_vmap() else states
    finals: list[list[Tensor]] = []
    for layer in range(module.num_layers):
        x = dropout(x, module.dropout, module.training) if layer else x
        outputs: list[Tensor] = []
        for direction in range(directions):
            track = layer * directions + direction
            first = [state[track : track + 1] for state in states]
            output, _, *c = _run_track(module, track, _steps_at(x, turned) if direction else x, first, padding)
            output = torch.where(padding, 0, output)
            finals.append([torch.where(ends > 0, _steps_at(output, last), first[0].to(output.dtype)), *c])
            outputs.append(_steps_at(output, turned) if direction else output)
        x = torch.cat(outputs, -1)
    found = [torch.cat(of_tracks) for of_tracks in zip(*finals, strict=True)]
    return x.transpose(0, 1) if module.batch_first else x, tuple(found) if len(found) > 1 else found[0]


def zero_states(module: Any, x: Tensor) -> list[Tensor]:
    """Initial states of a module. x: [T, B, I]."""
    widths = (module.proj_size or module.hidden_size, module.hidden_size)[: 1 + (module.mode == "LSTM")]
    return [x.new_zeros(len(module._all_weights), x.shape[1], width) for width in widths]


def batched_states(module: Any, x: Tensor, hx: State) -> State:
    """Initial states over all that torch.vmap maps x over: torch adds in place to products of them."""
    if hx is not None:
        return map_states(hx, lambda state: state + x.new_zeros(()))
    rows = x.unsqueeze(1) if x.dim() == 2 else x.transpose(0, 1) if module.batch_first else x
    states = [state.squeeze(1) if x.dim() == 2 else state for state in zero_states(module, rows)]
    return tuple(states) if len(states) > 1 else states[0]


def _steps_at(rows: Tensor, times: Tensor) -> Tensor:
    """rows [T, B, F] of each sequence at its own times [.., B, 1]."""
    return rows.gather(0, times.expand(-1, -1, rows.shape[2]))


def _run_track(module: Any, track: int, x: Tensor, first: list[Tensor], padding: Tensor) -> tuple[Tensor, ...]:
    """Output [T, B, H], whatever it is in the padding, and the states after the last step, of which c is that at the end."""
    size = len(module._all_weights[0])
    weights: list[Tensor] = module._flat_weights[track * size : (track + 1) * size]
    if columns := _OF_PADDING.get(module.mode):
        x = torch.cat((x, padding.to(x.dtype)), -1)
        of_padding = [weights[0].new_full((module.hidden_size, 1), value) for value in columns]
        weights[0] = torch.cat((weights[0], torch.cat(of_padding)), 1)
    weights = _in_one_buffer(weights) if x.is_cuda else weights
    run, states = getattr(torch, module.mode.lower()), first if module.mode == "LSTM" else first[0]
    results: tuple[Tensor, ...] = decompose_in_transforms(
        run, x, states, weights, module.bias, 1, 0.0, module.training, False, False
    )
    return results


def _in_one_buffer(weights: list[Tensor]) -> list[Tensor]:
    """Copies as cuDNN has them, matrices first; it makes them itself of others, and warns."""
    order = sorted(range(len(weights)), key=lambda i: -weights[i].dim())
    buffer = torch.cat([weights[i].flatten() for i in order])
    parts = dict(zip(order, buffer.split([weights[i].numel() for i in order]), strict=True))
    return [parts[i].view(weight.shape) for i, weight in enumerate(weights)]
