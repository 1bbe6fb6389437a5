"""Copies of one or two matrices whose rows are multiples of 16 bytes, in one launch.

torch's pad takes two launches a matrix.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.implementations._cuda.kernel import Kernel
from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations._cuda.memory import EmptyFactory

_SOURCE = Path(__file__).parent / "kernels" / "pad_rows.cu"
_THREADS, _VECTOR_BYTES = 256, 16
# The fields of the kernel's Params, by matrix.
_MATRICES = ("first", "second")
_ADDRESSES = tuple(name for matrix in _MATRICES for name in (matrix, f"{matrix}_padded"))
_SIZES = ("row_count", "columns", "padded_rows", "padded_columns")


class MatrixSizes(NamedTuple):
    """A matrix, whose rows are `stride` elements apart, and its copy, which has more rows and columns or as many."""

    rows: int
    columns: int
    stride: int
    padded_rows: int
    padded_columns: int

    @property
    def below(self) -> int:
        """Rows that the copy has more."""
        return self.padded_rows - self.rows

    @property
    def beside(self) -> int:
        """Columns that the copy has more."""
        return self.padded_columns - self.columns

    def arguments(self, matrix: str) -> dict[str, int]:
        sizes = (self.rows, self.columns, self.padded_rows, self.padded_columns)
        return {f"{matrix}_stride": self.stride} | {f"{matrix}_{name}": size for name, size in zip(_SIZES, sizes, strict=True)}


_NO_MATRIX = MatrixSizes(0, 0, 0, 0, 0)


class PaddedRows:
    """The launch for matrices of those sizes. Padded columns are multiples of 16 bytes."""

    def __init__(self, sizes: tuple[MatrixSizes, ...], dtype: torch.dtype, device: torch.device):
        vectors = sum(one.padded_rows * one.padded_columns for one in sizes) * dtype.itemsize // _VECTOR_BYTES
        first, second = (*sizes, _NO_MATRIX)[:2]
        integers = first.arguments("first") | second.arguments("second")
        self._run = make_kernel(dtype, device).at(Launch(ceil(vectors / _THREADS), _THREADS), _ADDRESSES, **integers)
        self._made = [EmptyFactory((one.padded_rows, one.padded_columns), dtype, device) for one in sizes]

    def __call__(self, *matrices: Tensor) -> list[Tensor]:
        """The copies."""
        copies = [make() for make in self._made]
        addresses = [one.data_ptr() for pair in zip(matrices, copies, strict=True) for one in pair]
        self._run((*addresses, 0, 0) if len(copies) == 1 else addresses)
        return copies


@lru_cache(maxsize=256)
def make_kernel(dtype: torch.dtype, device: torch.device) -> Kernel:
    arguments: dict[str, type[int] | type[np.int64]] = {}
    for matrix in _MATRICES:
        arguments |= {matrix: np.int64, f"{matrix}_padded": np.int64, f"{matrix}_stride": np.int64}
        arguments |= {f"{matrix}_{name}": int for name in _SIZES}
    return Kernel(_SOURCE, "pad_rows", macros(dtype), arguments, device)


def macros(dtype: torch.dtype) -> tuple[tuple[str, str], ...]:
    return ((f"STORAGE_{str(dtype).removeprefix('torch.').upper()}", "1"),)


get_padded_rows = lru_cache(maxsize=4096)(PaddedRows)


def clear_cache() -> None:
    """Clears the caches of kernels, so that other builds are used from now on."""
    get_padded_rows.cache_clear()
    make_kernel.cache_clear()
