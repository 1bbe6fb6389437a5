"""The ops of scans, contents for them, and a loop that computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import cells
from pytest_ecornn.implementations.scan_gpu.ops import CELLS
from pytest_ecornn.implementations.scan_gpu_log.ops import log_scan

OPS = torch.ops.pytest_ecornn
Inputs = tuple[Tensor, Tensor, Tensor]  # x, bias and first state
Masks = tuple[Tensor, Tensor | None]  # lengths and resets
Scan = Callable[..., tuple[Tensor, Tensor]]  # called as scan_gpu's is


def scan_in_log_space(
    x: Tensor, bias: Tensor | None, first: Tensor | None, lengths: Tensor | None, resets: None, *named: Any, **options: bool
) -> tuple[Tensor, Tensor]:
    return log_scan(x, first, lengths, *named, bias=bias, **options)


def given_x(cell: str, steps: int, batch: int, hidden: int, dtype: torch.dtype = torch.float64, device: str = "cuda") -> Tensor:
    torch.manual_seed(steps)
    return torch.randn(batch, steps, CELLS[cell][0] * hidden, dtype=dtype, device=device)


def draw(cell: str, steps: int, device: str, batch: int = 3, has_resets: bool = True) -> tuple[Inputs, Masks]:
    """Of sequences of 5 channels, the first as long as there are steps, the last of one."""
    x = given_x(cell, steps, batch, 5, device=device)
    bias, first = torch.randn(x.shape[-1], device=device).double(), torch.randn(batch, 5, device=device).double()
    lengths = torch.randint(1, steps + 1, (batch,), device=device)
    lengths[0], lengths[-1] = steps, 1
    resets = (torch.rand(batch, steps, device=device) < 0.1).to(torch.uint8) if has_resets else None
    return (x.requires_grad_(), bias.requires_grad_(), first.requires_grad_()), (lengths, resets)


def by_loop(
    x: Tensor, bias: Tensor, first: Tensor, lengths: Tensor, resets: Tensor | None, cell: str, reverse: bool
) -> tuple[Tensor, Tensor]:
    """[B, T, G*H] one step after the other, the state 0 before a step that is reset, kept beyond a sequence's length."""
    gates, state = CELLS[cell][0], first
    outputs: dict[int, Tensor] = {}
    for t in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        before = state if resets is None else torch.where(resets[:, t, None] > 0, 0.0, state)
        (after,) = cells.get(cell).step((x[:, t] + bias).chunk(gates, -1), (), (before,), {})
        is_alive = (lengths > t)[:, None]
        state, outputs[t] = torch.where(is_alive, after, state), torch.where(is_alive, after, 0.0)
    return torch.stack([outputs[t] for t in range(x.shape[1])], 1), state


def expect_loops(run: Scan, cell: str, inputs: Inputs, masks: Masks, reverse: bool, tolerance: float = 1e-12) -> None:
    """Output, final state and all gradients are a loop's, with the batch first and with time first."""
    (x, bias, first), (lengths, resets) = inputs, masks
    wanted = by_loop(*inputs, *masks, cell, reverse)
    weights = [torch.randn_like(one) for one in wanted]
    gradients = torch.autograd.grad(wanted, inputs, weights)
    by_time = x.transpose(0, 1), bias, first, lengths, None if resets is None else resets.t()
    output, final = run(*by_time, cell, False, reverse)
    for results in (run(*inputs, *masks, cell, True, reverse), (output.transpose(0, 1), final)):
        torch.testing.assert_close(results, wanted, rtol=tolerance, atol=tolerance / 10)
        of_inputs = torch.autograd.grad(results, inputs, weights)
        torch.testing.assert_close(of_inputs, gradients, rtol=100 * tolerance, atol=tolerance)


def one_channel(run: Scan, cell: str, x: Tensor, first: float = 0.0, **options: Tensor) -> Tensor:
    """Outputs and final state of minGRU's pre-activations [T, 2]."""
    state, bias, resets = torch.full((1, 1), first, dtype=torch.float64), options.get("bias"), options.get("resets")
    output, final = run(x[None], bias, state, None, resets, cell, True, False)
    return torch.cat([output.flatten(), final.flatten()])
