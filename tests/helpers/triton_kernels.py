"""A product and a softmax in Triton, as a newcomer writes them; imported where Triton is."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64


@triton.jit
def _matmul_kernel(a, b, c, m, n, k, am, ak, bk, bn, tile: tl.constexpr, last: tl.constexpr):  # type: ignore[no-untyped-def]
    """One tile of C a program. last: how much of the last tile of k is left out."""
    rows = tl.program_id(0) * tile + tl.arange(0, tile)
    columns = tl.program_id(1) * tile + tl.arange(0, tile)
    depth = tl.arange(0, tile)
    total = tl.zeros((tile, tile), dtype=tl.float32)
    for start in range(0, k - last, tile):
        inner = start + depth
        in_rows, in_columns = rows[:, None] < m, columns[None, :] < n
        left = tl.load(a + rows[:, None] * am + inner[None, :] * ak, mask=in_rows & (inner[None, :] < k), other=0.0)
        right = tl.load(b + inner[:, None] * bk + columns[None, :] * bn, mask=in_columns & (inner[:, None] < k), other=0.0)
        total += tl.dot(left, right)
    where = rows[:, None] * n + columns[None, :]
    tl.store(c + where, total.to(c.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


def matmul(a: Tensor, b: Tensor, last: int = 0) -> Tensor:
    """A [M, K] times B [K, N], of any strides."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, TILE), triton.cdiv(n, TILE))
    _matmul_kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), tile=TILE, last=last)
    return c


@triton.jit
def _softmax_kernel(x, y, width, between, element, block: tl.constexpr, short: tl.constexpr):  # type: ignore[no-untyped-def]
    """A row a program. short: how many columns at its end are not read."""
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    values = tl.load(x + row * between + columns * element, mask=columns < width - short, other=-float("inf")).to(tl.float32)
    values = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * width + columns, (values / tl.sum(values, 0)).to(y.dtype.element_ty), mask=columns < width)


def softmax(x: Tensor, short: int = 0) -> Tensor:
    """Over the last dimension of x [rows, width], of any strides."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(x.shape[1])
    _softmax_kernel[(x.shape[0],)](x, y, x.shape[1], *x.stride(), block=block, short=short)
    return y
