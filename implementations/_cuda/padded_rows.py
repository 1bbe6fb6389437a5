"""Copies of up to five matrices in one launch: with rows that are multiples of 16 bytes, or without such rows' ends.

torch's pad takes two launches a matrix, and as many to find and to fill with zeros what is after sequences' ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.implementations._cuda.kernel import Kernel, storage_macro
from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations._cuda.memory import EmptyFactory, address

_SOURCE = Path(__file__).parent / "kernels" / "pad_rows.cu"
_THREADS, _MATRICES, _MAX_VECTORS = 256, 5, 2**31
VECTOR_BYTES = 16
# The fields of the kernel's Params, of each matrix.
_ADDRESSES = ("rows", "above", "padded", "lengths")
_SIZES = ("row_count", "columns", "padded_rows", "padded_columns", "skipped", "batch", "has_ones")


class MatrixSizes(NamedTuple):
    """A matrix, whose rows are `stride` elements apart, and its copy, which has more rows and columns or as many.

    skipped: of `rows` those that another matrix, without gaps, has above it, or that are zeros. batch: sequences, one's step
    beside the other's, of rows that have lengths; 0 for others. has_ones: the first of the copy's further columns is ones.
    """

    rows: int
    width: int
    stride: int
    padded_rows: int
    padded_width: int
    skipped: int = 0
    batch: int = 0
    has_ones: bool = False

    @classmethod
    def of_vectors(
        cls, rows: int, width: int, itemsize: int, stride: int = 0, skipped: int = 0, pads_rows: bool = False,
        has_ones: bool = False,
    ) -> MatrixSizes:  # fmt: skip
        """A matrix without gaps, unless a stride is given, and its copy with rows of whole vectors of 16 bytes.

        pads_rows: their number is a multiple of the elements of a vector, too.
        """
        vector = VECTOR_BYTES // itemsize
        padded_rows = rows + (-rows % vector if pads_rows else 0)
        more_width = -width % vector
        return cls(rows, width, stride or width, padded_rows, width + more_width, skipped, has_ones=has_ones and more_width > 0)

    @classmethod
    def of_part(cls, rows: int, width: int, stride: int) -> MatrixSizes:
        """The first columns of longer rows, and their copy without gaps."""
        return cls(rows, width, stride, rows, width)

    @property
    def more_rows(self) -> int:
        """Rows that the copy has more."""
        return self.padded_rows - self.rows

    @property
    def more_width(self) -> int:
        """Columns that the copy has more."""
        return self.padded_width - self.width

    def arguments(self, number: int) -> dict[str, int]:
        values = (self.rows, self.width, self.padded_rows, self.padded_width, self.skipped, self.batch, int(self.has_ones))
        return {f"stride_{number}": self.stride} | dict(zip(_names(_SIZES, number), values, strict=True))


_NO_MATRIX = MatrixSizes(0, 0, 0, 0, 0)


def _names(fields: Sequence[str], number: int) -> list[str]:
    return [f"{field}_{number}" for field in fields]


class PaddedRows:
    """The launch for matrices of those sizes. Raises ValueError for large copies."""

    def __init__(self, sizes: tuple[MatrixSizes, ...], dtype: torch.dtype, device: torch.device):
        vectors = sum(ceil(size.padded_rows * size.padded_width * dtype.itemsize / VECTOR_BYTES) for size in sizes)
        if vectors >= _MAX_VECTORS:
            raise ValueError(f"expected copies of fewer than 2^31 vectors of 16 bytes, got {vectors}")
        self._others = (0,) * (len(_ADDRESSES) * (_MATRICES - len(sizes)))
        integers: dict[str, int] = {}
        for number, size in enumerate((*sizes, *[_NO_MATRIX] * (_MATRICES - len(sizes)))):
            integers |= size.arguments(number)
        addresses = [name for number in range(_MATRICES) for name in _names(_ADDRESSES, number)]
        self._run = make_kernel(dtype, device).at(Launch(ceil(vectors / _THREADS), _THREADS), addresses, **integers)
        self._batches = [size.batch for size in sizes]
        self._made = [EmptyFactory((size.padded_rows, size.padded_width), dtype, device) for size in sizes]

    def __call__(
        self, matrices: Sequence[Tensor], above: Sequence[Tensor | None] = (), lengths: Tensor | None = None
    ) -> list[Tensor]:
        """The copies.

        above: of each matrix the rows before its first, None for zeros; () for none of any. lengths: int64 [batch], of the
        matrices that have sequences.
        """
        copies, addresses = [make() for make in self._made], list[int]()
        for number, (matrix, copied) in enumerate(zip(matrices, copies, strict=True)):
            before, of_rows = above[number] if above else None, lengths if self._batches[number] else None
            addresses += (matrix.data_ptr(), address(before), copied.data_ptr(), address(of_rows))
        self._run((*addresses, *self._others))
        return copies


@lru_cache(maxsize=256)
def make_kernel(dtype: torch.dtype, device: torch.device) -> Kernel:
    arguments: dict[str, type[int] | type[np.int64]] = {}
    for number in range(_MATRICES):
        arguments |= dict.fromkeys(_names((*_ADDRESSES, "stride"), number), np.int64)
        arguments |= dict.fromkeys(_names(_SIZES, number), int)
    return Kernel(_SOURCE, "pad_rows", macros(dtype), arguments, device, is_lazy=True)


def macros(dtype: torch.dtype) -> tuple[tuple[str, str], ...]:
    return (storage_macro(dtype), "1"), ("MATRICES", str(_MATRICES))


get_padded_rows = lru_cache(maxsize=4096)(PaddedRows)


def zero_padding_in_one_launch(x: Tensor, lengths: Tensor) -> Tensor | None:
    """x [T, B, I] with zeros in the padding, whatever is there.

    lengths: int64 [B] without gaps. None where rows have gaps or are not of whole vectors, or are too many.
    """
    steps, batch, width = x.shape
    if not x.is_contiguous() or width * x.itemsize % VECTOR_BYTES or x.nbytes >= VECTOR_BYTES * _MAX_VECTORS:
        return None
    size = MatrixSizes(steps * batch, width, width, steps * batch, width, batch=batch)
    (masked,) = get_padded_rows((size,), x.dtype, x.device)([x], lengths=lengths)
    return masked.view(x.shape)


def clear_cache() -> None:
    """Clears the caches of kernels, so that other builds are used from now on."""
    get_padded_rows.cache_clear()
    make_kernel.cache_clear()
