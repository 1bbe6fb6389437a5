"""Positions of a pruned weight's non-zeros, by rows, read from its mask; what is malformed is refused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PADDING = -1  # no row, unit or element


@dataclass(frozen=True, eq=False)
class CsrPattern:
    """Elements of a matrix of `shape` [R, K]: those of row r lie in columns `columns[starts[r]:starts[r + 1]]`, ascending.

    starts: [R + 1] int64. columns: [N] int32. Raises ValueError, with the row, where they do not say that.
    """

    shape: tuple[int, int]
    row_offsets: NDArray[np.int64]
    col_indices: NDArray[np.int32]

    def __post_init__(self) -> None:
        rows, _ = self.shape
        if self.row_offsets.shape != (rows + 1,):
            raise ValueError(f"starts of {rows} rows must be {rows + 1} numbers, got shape {self.row_offsets.shape}")
        if self.col_indices.ndim != 1 or self.row_offsets[0] != 0 or self.row_offsets[-1] != len(self.col_indices):
            raise ValueError(
                f"starts must go from 0 to the number of columns given, {self.col_indices.size}, "
                f"got {self.row_offsets[0]} to {self.row_offsets[-1]}"
            )
        if (self.counts < 0).any():
            row = int(np.argmax(self.counts < 0))
            raise ValueError(
                f"starts must not fall, got {self.row_offsets[row]} and then {self.row_offsets[row + 1]} after row {row}"
            )
        self._check_columns()

    def _check_columns(self) -> None:
        outside = (self.col_indices < 0) | (self.col_indices >= self.shape[1])
        if outside.any():
            i = int(np.argmax(outside))
            raise ValueError(f"row {self.row_of(i)} has column {self.col_indices[i]}, expected 0 to {self.shape[1] - 1}")
        follows = np.diff(self.col_indices) > 0
        follows[self.row_offsets[(self.row_offsets > 0) & (self.row_offsets < len(self.col_indices))] - 1] = (
            True  # another row's
        )
        if not follows.all():
            i = int(np.argmin(follows))
            before, after = self.col_indices[i : i + 2]
            what = f"column {before} twice" if before == after else f"column {after} after column {before}"
            raise ValueError(f"row {self.row_of(i)} has {what}, expected ascending columns")

    @property
    def counts(self) -> NDArray[np.int64]:
        """Elements per row [R]."""
        return np.diff(self.row_offsets)

    @property
    def rows(self) -> NDArray[np.int32]:
        """Row of each element [N]."""
        return np.repeat(np.arange(self.shape[0], dtype=np.int32), self.counts)

    @property
    def places(self) -> NDArray[np.int64]:
        """Index of each element in the flattened dense matrix, row-major [N]."""
        return self.rows.astype(np.int64) * self.shape[1] + self.col_indices

    def row_of(self, i: int) -> int:
        return int(np.searchsorted(self.row_offsets, i, side="right")) - 1

    @property
    def mask(self) -> Tensor:
        """[R, K] bool."""
        found = torch.zeros(self.shape, dtype=torch.bool)
        found.view(-1)[torch.from_numpy(self.places)] = True
        return found


def from_mask(mask: Tensor) -> CsrPattern:
    """mask: [R, K] bool, True where an element may differ from 0."""
    if mask.dim() != 2 or mask.dtype != torch.bool:
        raise ValueError(f"a mask must be two-dimensional and bool, got {mask.dim()} dimensions of {mask.dtype}")
    found = mask.cpu().numpy()
    columns = (np.flatnonzero(found) % found.shape[1]).astype(np.int32)
    return CsrPattern((mask.shape[0], mask.shape[1]), offsets_from_counts(found.sum(axis=1)), columns)


def offsets_from_counts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts)))
