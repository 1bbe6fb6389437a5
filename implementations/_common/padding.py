"""Padded batches of sequences that have lengths: their padding, and the hidden states before each step."""

from __future__ import annotations

import torch
from torch import Tensor


def is_padding(lengths: Tensor, steps: int, batch_first: bool) -> Tensor:
    """A mask [T, B, 1], or [B, T, 1] with `batch_first`: whether a step lies after its sequence's end. lengths: [B]."""
    times = torch.arange(steps, device=lengths.device)
    return (times >= lengths[:, None] if batch_first else times[:, None] >= lengths).unsqueeze(-1)


def zero_padding(x: Tensor, lengths: Tensor, batch_first: bool) -> Tensor:
    """x [T, B, ..], or [B, T, ..] with `batch_first`, with zeros in the padding, whatever is there. lengths: [B]."""
    return torch.where(is_padding(lengths, x.shape[1 if batch_first else 0], batch_first), 0, x)


def shifted_states(output: Tensor, h0: Tensor | None, lengths: Tensor | None, batch_first: bool, reverse: bool) -> Tensor:
    """h before each step, with the output's layout; in the padding, where the output is 0, any that are finite.

    h0: the initial states [B, H], None for zeros.
    """
    time = 1 if batch_first else 0
    initial = output.new_zeros(output.select(time, 0).shape) if h0 is None else h0
    if h0 is not None and lengths is not None:  # of a sequence without steps it may not be finite
        initial = torch.where(lengths[:, None] > 0, h0, 0)
    inner = output.narrow(time, 1, output.shape[time] - 1) if reverse else output.narrow(time, 0, output.shape[time] - 1)
    initial = initial.unsqueeze(time)
    shifted = torch.cat((inner, initial) if reverse else (initial, inner), time)
    if h0 is None or lengths is None or not reverse:
        return shifted
    is_last = (torch.arange(output.shape[time], device=lengths.device) + 1 == lengths[:, None]).unsqueeze(-1)
    return torch.where(is_last if batch_first else is_last.transpose(0, 1), initial, shifted)
