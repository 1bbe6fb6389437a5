"""The ops of scans, contents for them, and a loop that computes the same."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import cells
from pytest_ecornn.implementations.scan_gpu.ops import CELLS

OPS = torch.ops.pytest_ecornn


def given_x(cell: str, steps: int, batch: int, hidden: int, dtype: torch.dtype = torch.float64, device: str = "cuda") -> Tensor:
    torch.manual_seed(steps)
    return torch.randn(batch, steps, CELLS[cell][0] * hidden, dtype=dtype, device=device)


def by_loop(
    x: Tensor, bias: Tensor, first: Tensor, lengths: Tensor, resets: Tensor, cell: str, reverse: bool
) -> tuple[Tensor, Tensor]:
    """[B, T, G*H] one step after the other, the state 0 before a step that is reset, kept beyond a sequence's length."""
    gates, state = CELLS[cell][0], first
    outputs: dict[int, Tensor] = {}
    for t in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        before = torch.where(resets[:, t, None] > 0, 0.0, state)
        (after,) = cells.get(cell).step((x[:, t] + bias).chunk(gates, -1), (), (before,), {})
        is_alive = (lengths > t)[:, None]
        state, outputs[t] = torch.where(is_alive, after, state), torch.where(is_alive, after, 0.0)
    return torch.stack([outputs[t] for t in range(x.shape[1])], 1), state
