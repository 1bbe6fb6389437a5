"""Products with long sums in 16 bits, of which cuBLAS drops the end at some lengths (docs/notes/cublas.md).

It splits the sum and returns the product over its first K - K % 64 terms. So those are one product here, the others another.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK, _MIN_TERMS = 64, 4096  # the sum's blocks; sums that were wrong had at least 7,364 terms


def summed_terms(a: Tensor) -> int:
    """The terms of a product with `a` [M, K] that cuBLAS surely adds: K, or fewer where a second product must add the rest."""
    terms = a.shape[1]
    return terms - terms % _BLOCK if terms >= _MIN_TERMS and a.itemsize == 2 and a.is_cuda else terms


def mm(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a b: [M, K], [K, N] -> [M, N] of the same dtype, which is `out` where that is given."""
    summed = summed_terms(a)
    if summed == a.shape[1]:
        return torch.mm(a, b, out=out)
    return torch.mm(a[:, :summed], b[:summed], out=out).addmm_(a[:, summed:], b[summed:])
