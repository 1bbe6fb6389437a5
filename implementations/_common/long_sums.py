"""Products a^T b with long sums in 16 bits, of which cuBLAS drops the end at some lengths (docs/notes/cublas.md).

It splits the sum and returns the product over its first K - K % 64 terms. So those are one product here, the others another,
both in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK, MIN_TERMS = 64, 4096  # the sum's blocks; sums that were wrong had at least 7,364 terms
_wide_mm = torch.ops.aten.mm.dtype  # whose result has a dtype of its own


def summed_terms(a: Tensor) -> int:
    """The terms of a product with `a` [M, K] that cuBLAS surely adds: K, or fewer where a second product must add the rest."""
    terms, is_transposed = a.shape[1], a.stride(0) == 1
    is_long = terms >= MIN_TERMS and a.itemsize == 2 and is_transposed and a.is_cuda
    return terms - terms % _BLOCK if is_long else terms


def mm(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a b: [M, K], [K, N] -> [M, N] of the same dtype, which is `out` where that is given. It is rounded once."""
    summed = summed_terms(a)
    if summed == a.shape[1]:
        return torch.mm(a, b, out=out)
    total = _wide_mm(a[:, :summed], b[:summed], torch.float32)
    total += _wide_mm(a[:, summed:], b[summed:], torch.float32)
    return total.to(a.dtype) if out is None else out.copy_(total)
