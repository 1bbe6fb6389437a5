"""The sizes of a layer whose gradients are computed, and by what they may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pytest_ecornn.implementations._common.long_sums import MIN_TERMS
from pytest_ecornn.implementations._common.padded_gemm import is_never_padded
from pytest_ecornn.implementations._cuda.compile import has_clusters
from pytest_ecornn.implementations._cuda.memory import EmptyFactory
from pytest_ecornn.implementations._cuda.padded_rows import VECTOR_BYTES
from pytest_ecornn.implementations._cuda.parameter_gradients import launch_us

# Time of cuBLAS's products and a sum on an H100, by the size of an element: us, us a GFLOP (TF32's) and us a thousand rows. GRU
# has a product more.
_PRODUCTS_US = {4: (13.0, 10.0, 0.9), 2: (9.0, 5.0, 0.9)}
_ANOTHER_PRODUCT_US = 4.0
_MAX_BATCHED_FLOP = 1e9  # of a product; two larger ones take the device longer than the host
_MAX_BATCHED_ROWS = 512  # longer sums are split among blocks in a product of its own alone


class GradientSizes(NamedTuple):
    """T time steps, B sequences, H units, D directions. wide: G*H. splits_last: of GRU, whose last H rows are apart."""

    steps: int
    batch: int
    hidden: int
    wide: int
    directions: int
    splits_last: bool
    dtype: torch.dtype
    device: torch.device

    @property
    def rows(self) -> int:
        return self.steps * self.batch

    @property
    def vector(self) -> int:
        """Elements of 16 bytes."""
        return VECTOR_BYTES // self.dtype.itemsize

    def factory(self, *shape: int) -> EmptyFactory:
        """Allocates a tensor of that shape for each direction; of one without that dimension."""
        return EmptyFactory(shape if self.directions == 1 else (2, *shape), self.dtype, self.device)

    def suit_one_launch(self, width: int) -> bool:
        """Whether all gradients are computed in one launch. width: of the inputs."""
        if not (self.rows and width and has_clusters(self.device)):
            return False
        return launch_us(self.rows, self.wide, self.hidden, width, self.directions) <= self.products_us(width)

    def suit_launches(self, widths: Sequence[int]) -> bool:
        """Whether all gradients of each layer are computed in one launch. widths: of the inputs of all layers."""
        return bool(widths) and all(map(self.suit_one_launch, widths))

    def products_us(self, width: int) -> float:
        """Time of the products that take the launch's place."""
        flop = 2 * self.directions * self.rows * self.wide * (width + self.hidden)
        least_us, us_a_gflop, us_a_thousand_rows = _PRODUCTS_US[self.dtype.itemsize]
        sums_us = us_a_gflop * flop / 1e9 + us_a_thousand_rows * self.rows / 1e3
        return least_us + sums_us + self.splits_last * _ANOTHER_PRODUCT_US

    def suit_products(self, widths: Sequence[int], tf32: bool) -> bool:
        """Whether GradientProducts may run: no sums that are split, gates of whole vectors, two directions only if small.

        widths: of the inputs of all layers.
        """
        if self.steps == 1 or (self.rows >= MIN_TERMS and self.dtype.itemsize == 2):
            return False
        if self.directions > 1:
            return 2 * self._products(widths) < _MAX_BATCHED_FLOP and self.rows <= _MAX_BATCHED_ROWS
        return self.wide % self.vector == 0 or not self.are_padded(widths, tf32)

    def are_padded(self, widths: Sequence[int], tf32: bool) -> bool:
        """Whether products are faster on copies whose rows are of whole vectors, which those of one direction may have."""
        is_padded = not is_never_padded((self.hidden, self.wide, *widths), self._products(widths), self.dtype, tf32)
        return self.directions == 1 and is_padded

    def _products(self, widths: Sequence[int]) -> int:
        """Multiplications in the largest product."""
        return self.rows * self.wide * max((self.hidden, *widths))
