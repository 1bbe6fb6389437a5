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

# Time of cuBLAS's products and a sum, fitted to 880 sizes on an H200 by tests/tools/gradients_times.py: us, us a GFLOP, us a
# thousand rows, us of GRU's further product. By the arithmetic; then of products of each direction on its own.
_PRODUCTS_US = {
    "ieee": ((10.8, 28.4, 1.3, 3.2), (28.1, 28.4, 2.1, 15.0)),
    "tf32": ((10.9, 8.7, 0.93, 5.35), (25.3, 8.7, 1.9, 14.7)),
    "16 bits": ((7.1, 0.7, 4.1, 2.9), (19.0, 3.4, 0.9, 13.2)),
}
_HOST_IS_WORTH = 1.15  # a launch may take the device so many times as long: it takes the host 75 to 450 us less
_MAX_BATCHED_FLOP = 1e9  # of a product; two larger ones take the device longer than the host, and both gates' gradients memory
_MAX_BATCHED_ROWS = 512  # longer sums are split among blocks in a product of its own alone


class GradientSizes(NamedTuple):
    """T time steps, B sequences, H units, D directions. gate_width: G*H. splits_last: of GRU, whose last H rows are apart.

    tf32: products of float32 are in TF32.
    """

    steps: int
    batch: int
    hidden: int
    gate_width: int
    directions: int
    splits_last: bool
    dtype: torch.dtype
    device: torch.device
    tf32: bool = False

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
        in_launch_us = launch_us(self.rows, self.gate_width, self.hidden, width, self.dtype, self.directions)
        return in_launch_us <= _HOST_IS_WORTH * self.products_us(width)

    def suit_launches(self, widths: Sequence[int]) -> bool:
        """Whether all gradients of each layer are computed in one launch. widths: of the inputs of all layers."""
        return bool(widths) and all(map(self.suit_one_launch, widths))

    def products_us(self, width: int) -> float:
        """Time of the products that take the launch's place."""
        gflop, rows = 2e-9 * self.directions * self.rows * self.gate_width * (width + self.hidden), self.rows / 1e3
        arithmetic = "16 bits" if self.dtype.itemsize == 2 else "tf32" if self.tf32 else "ieee"
        by_both, apart = _PRODUCTS_US[arithmetic]
        base, of_flop, of_rows, of_gru = by_both if self.are_together(width) else apart
        return base + of_flop * gflop + of_rows * rows + of_gru * self.splits_last

    def suit_products(self, widths: Sequence[int]) -> bool:
        """Whether GradientProducts may run: no sums that are split, two directions only if small.

        widths: of the inputs of all layers.
        """
        if self.steps == 1 or (self.rows >= MIN_TERMS and self.dtype.itemsize == 2):
            return False
        return self.directions == 1 or 2 * self._products(widths) < _MAX_BATCHED_FLOP

    def are_together(self, width: int) -> bool:
        """Whether the gradients of a weight, of all directions, are one product of GradientProducts. width: of the inputs."""
        return self.suit_products((width,)) and (self.directions == 1 or self.are_batched)

    @property
    def are_batched(self) -> bool:
        """Whether products of both directions are one."""
        return self.directions > 1 and self.rows <= _MAX_BATCHED_ROWS

    def are_padded(self, widths: Sequence[int]) -> bool:
        """Whether products are faster on copies whose rows are of whole vectors, which those of one direction may have."""
        is_padded = not is_never_padded((self.hidden, self.gate_width, *widths), self._products(widths), self.dtype, self.tf32)
        return self.directions == 1 and is_padded

    def _products(self, widths: Sequence[int]) -> int:
        """Multiplications in the largest product."""
        return self.rows * self.gate_width * max((self.hidden, *widths))
