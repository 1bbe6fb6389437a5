"""Products of matrices whose rows are no multiple of 16 bytes, on copies that are.

The tensor cores' fast kernels read 16 bytes at a time; for other rows cuBLAS has kernels that take two to three times as long.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

_ALIGNED = 16  # bytes
_FEWEST_OPERATIONS = 1e9  # fewer take less time than copies


def times_transposed(x: Tensor, b: Tensor, tf32: bool, into: Tensor | None = None) -> Tensor:
    """x b^T: [T, B, K], [N, K] -> [T, B, N], whose rows may be apart from each other.

    into: [T, B, N or more], of whose rows they are the first part; what comes after it may be 0 then.
    """
    wide, is_fast = b.shape[0], _is_fast(x, b, x.numel() * b.shape[0], tf32)
    if is_fast and into is None:
        return linear(x, b)
    a, b = (x.flatten(0, 1), b) if is_fast else (_aligned(x.flatten(0, 1)), _aligned(b, rows=True))
    if into is None:
        return (a @ b.t())[:, :wide].view(*x.shape[:2], wide)
    b = b[: into.shape[2]]
    torch.mm(a, b.t(), out=into.view(-1, into.shape[2])[:, : b.shape[0]])
    return into[..., :wide]


def times(a: Tensor, b: Tensor, tf32: bool) -> Tensor:
    """a b: [M, K], [K, N] -> [M, N]."""
    if _is_fast(a, b, a.shape[0] * b.numel(), tf32):
        return a @ b
    return (_aligned(a) @ _aligned(b, rows=True))[:, : b.shape[1]].contiguous()


def transposed_times(a: Tensor, b: Tensor, tf32: bool) -> Tensor:
    """a^T b: [K, M], [K, N] -> [M, N]."""
    if _is_fast(a, b, a.shape[1] * b.numel(), tf32):
        return a.t() @ b
    return (_aligned(a).t() @ _aligned(b))[: a.shape[1], : b.shape[1]].contiguous()


def _is_fast(a: Tensor, b: Tensor, products: int, tf32: bool) -> bool:
    """Whether it is as they are."""
    if 2 * products < _FEWEST_OPERATIONS or not a.is_cuda or (a.dtype == torch.float32 and not tf32):
        return True
    return not any(stride * a.itemsize % _ALIGNED for one in (a, b) for stride in one.stride()[:-1])


def _aligned(a: Tensor, rows: bool = False) -> Tensor:
    """With zeros up to a multiple of 16 bytes in each row, and to as many rows; as it is where nothing is missing."""
    elements = _ALIGNED // a.itemsize
    columns, below = -a.shape[1] % elements, -a.shape[0] % elements if rows else 0
    if columns or below:
        return pad(a, (0, columns, 0, below))
    return a.contiguous() if a.stride(0) % elements else a
