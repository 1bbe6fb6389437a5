"""Products of matrices whose rows are not a multiple of 16 bytes, on padded copies.

The tensor cores' fast kernels read 16 bytes at a time. For other rows cuBLAS uses kernels that take two to three times as long.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from pytest_ecornn.implementations._common import long_sums

_ALIGNED = 16  # bytes
_MIN_FLOPS = 1e9  # fewer take less time than copies


def matmul_nt(x: Tensor, b: Tensor, tf32: bool) -> Tensor:
    """x b^T: [T, B, K], [N, K] -> [T, B, N], whose rows may be apart from each other."""
    if _is_fast(x, b, x.numel() * b.shape[0], tf32):
        return linear(x, b)
    a, wide = _aligned(x.flatten(0, 1)), b.shape[0]
    return (a @ _aligned(b, rows=True).t())[:, :wide].view(*x.shape[:2], wide)


def matmul_nt_padded(width: int, x: Tensor, b: Tensor, tf32: bool) -> Tensor:
    """x b^T: [T, B, K], [N, K] -> the first N of [T, B, width] without gaps, whose others may be 0."""
    is_fast = _is_fast(x, b, x.numel() * b.shape[0], tf32)
    if is_fast and width == b.shape[0]:
        return linear(x, b).contiguous()
    found = x.new_empty(*x.shape[:2], width)
    a, b = (x.flatten(0, 1), b) if is_fast else (_aligned(x.flatten(0, 1)), _aligned(b, rows=True)[:width])
    torch.mm(a, b.t(), out=found.view(-1, width)[:, : b.shape[0]])
    return found


def matmul_nn(a: Tensor, b: Tensor, tf32: bool) -> Tensor:
    """a b: [T, B, K], [K, N] -> [T, B, N]."""
    if _is_fast(a, b, a.numel() * b.shape[1], tf32):
        return a @ b
    found = _aligned(a.flatten(0, 1)) @ _aligned(b, rows=True)
    return found[:, : b.shape[1]].contiguous().view(*a.shape[:2], b.shape[1])


def matmul_tn(a: Tensor, b: Tensor, tf32: bool, into: Tensor | None = None) -> Tensor:
    """a^T b: [K, M], [K, N] -> [M, N], which is `into` where that is given."""
    if _is_fast(a, b, a.shape[1] * b.numel(), tf32):
        return long_sums.mm(a.t(), b, out=into)
    found = long_sums.mm(_aligned(a).t(), _aligned(b))[: a.shape[1], : b.shape[1]]
    return found.contiguous() if into is None else into.copy_(found)


def is_never_padded(widths: Iterable[int], products: int, dtype: torch.dtype, tf32: bool) -> bool:
    """Whether rows so many elements apart are fast unpadded on a GPU, in a product of `products` multiplications."""
    if 2 * products < _MIN_FLOPS or (dtype == torch.float32 and not tf32):
        return True
    return all(width * dtype.itemsize % _ALIGNED == 0 for width in widths)


def _is_fast(a: Tensor, b: Tensor, products: int, tf32: bool) -> bool:
    """Whether the product is fast without padding."""
    return not a.is_cuda or is_never_padded((a.stride(0), a.stride(-2), b.stride(0)), products, a.dtype, tf32)


def _aligned(a: Tensor, rows: bool = False) -> Tensor:
    """Pads each row with zeros to a multiple of 16 bytes, with `rows` also their number. Returns `a` where it needs none."""
    elements = _ALIGNED // a.itemsize
    columns, below = -a.shape[1] % elements, -a.shape[0] % elements if rows else 0
    if columns or below:
        return pad(a, (0, columns, 0, below))
    return a.contiguous() if a.stride(0) % elements else a
