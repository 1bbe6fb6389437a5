"""Hidden states before each step, which the gradient of weight_hh is computed from."""

from __future__ import annotations

import torch
from torch import Tensor


def shifted_states(output: Tensor, first: Tensor | None, lengths: Tensor | None, batch_first: bool, reverse: bool) -> Tensor:
    """h before each step, with the output's layout; 0 where a sequence has ended, as values there may not be finite."""
    time = 1 if batch_first else 0
    initial = output.new_zeros(output.select(time, 0).shape) if first is None else first
    inner = output.narrow(time, 1, output.shape[time] - 1) if reverse else output.narrow(time, 0, output.shape[time] - 1)
    pieces = (inner, initial.unsqueeze(time)) if reverse else (initial.unsqueeze(time), inner)
    found = torch.cat(pieces, time)
    if lengths is None:
        return found
    steps = torch.arange(output.shape[time], device=lengths.device)
    steps = steps[None, :] - lengths[:, None] if batch_first else steps[:, None] - lengths
    if reverse:
        found = torch.where((steps == -1)[..., None], initial.unsqueeze(time), found)
    return found.masked_fill((steps >= 0)[..., None], 0)
