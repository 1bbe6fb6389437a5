"""Products of matrices whose rows are not a multiple of 16 bytes, on padded copies, of both operands in one launch.

The tensor cores' fast kernels read 16 bytes at a time. For other rows cuBLAS uses kernels that take two to three times as long.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from pytest_ecornn.implementations._common import long_sums
from pytest_ecornn.implementations._cuda.padded_rows import VECTOR_BYTES, MatrixSizes, get_padded_rows

_MIN_FLOPS = 1e9  # fewer take less time than copies


def matmul_nt(x: Tensor, b: Tensor, tf32: bool) -> Tensor:
    """x b^T: [T, B, K], [N, K] -> [T, B, N], whose rows may be apart from each other."""
    if _is_fast(x, b, x.numel() * b.shape[0], tf32):
        return linear(x, b)
    columns = b.shape[0]
    a, b = _aligned((x.flatten(0, 1), False), (b, True))
    return (a @ b.t())[:, :columns].view(*x.shape[:2], columns)


def matmul_nt_padded(width: int, x: Tensor, b: Tensor, tf32: bool) -> Tensor:
    """x b^T: [T, B, K], [N, K] -> the first N of [T, B, width] without gaps, whose others may be 0."""
    is_fast = _is_fast(x, b, x.numel() * b.shape[0], tf32)
    if is_fast and width == b.shape[0]:
        return linear(x, b).contiguous()
    product = x.new_empty(*x.shape[:2], width)
    a, b = (x.flatten(0, 1), b) if is_fast else _aligned((x.flatten(0, 1), False), (b, True))
    b = b[:width]
    torch.mm(a, b.t(), out=product.view(-1, width)[:, : b.shape[0]])
    return product


def matmul_nn(a: Tensor, b: Tensor, tf32: bool) -> Tensor:
    """a b: [T, B, K], [K, N] -> [T, B, N]."""
    if _is_fast(a, b, a.numel() * b.shape[1], tf32):
        return a @ b
    left, right = _aligned((a.flatten(0, 1), False), (b, True))
    return (left @ right)[:, : b.shape[1]].contiguous().view(*a.shape[:2], b.shape[1])


def matmul_tn(a: Tensor, b: Tensor, tf32: bool, into: Tensor | None = None) -> Tensor:
    """a^T b: [K, M], [K, N] -> [M, N], which is `into` where that is given."""
    if _is_fast(a, b, a.shape[1] * b.numel(), tf32):
        return long_sums.mm(a.t(), b, out=into)
    left, right = _aligned((a, False), (b, False))
    product = long_sums.mm(left.t(), right)[: a.shape[1], : b.shape[1]]
    return product.contiguous() if into is None else into.copy_(product)


def is_never_padded(widths: Iterable[int], products: int, dtype: torch.dtype, tf32: bool) -> bool:
    """Whether rows so many elements apart are fast unpadded on a GPU, in a product of `products` multiplications."""
    if 2 * products < _MIN_FLOPS or (dtype == torch.float32 and not tf32):
        return True
    return all(width * dtype.itemsize % VECTOR_BYTES == 0 for width in widths)


def _is_fast(a: Tensor, b: Tensor, products: int, tf32: bool) -> bool:
    """Whether the product is fast without padding."""
    return not a.is_cuda or is_never_padded((a.stride(0), a.stride(-2), b.stride(0)), products, a.dtype, tf32)


def _aligned(*matrices: tuple[Tensor, bool]) -> list[Tensor]:
    """Copies whose rows are multiples of 16 bytes, with zeros at their ends; their number too where that is asked for.

    A matrix that needs no copy is returned itself.
    """
    originals = [matrix for matrix, _ in matrices]
    sizes = [_sizes_of_copy(matrix, pads_number) for matrix, pads_number in matrices]
    copied = [matrix for matrix, size in zip(originals, sizes, strict=True) if size is not None]
    if not copied:
        return originals
    needed = tuple([size for size in sizes if size is not None])
    if all(map(_is_copied_by_kernel, copied)):
        copies = iter(get_padded_rows(needed, copied[0].dtype, copied[0].device)(copied))
    else:
        copies = (pad(matrix, (0, size.more_width, 0, size.more_rows)) for matrix, size in zip(copied, needed, strict=True))
    return [matrix if size is None else next(copies) for matrix, size in zip(originals, sizes, strict=True)]


def _is_copied_by_kernel(matrix: Tensor) -> bool:
    return matrix.is_cuda and matrix.stride(1) == 1


def _sizes_of_copy(matrix: Tensor, pads_number: bool) -> MatrixSizes | None:
    """Sizes of a matrix and its copy, None where it needs none."""
    (rows, width), stride = matrix.shape, matrix.stride(0)
    copied = MatrixSizes.of_vectors(rows, width, matrix.itemsize, stride, pads_rows=pads_number)
    return copied if copied.more_width or copied.more_rows or stride * matrix.itemsize % VECTOR_BYTES else None
