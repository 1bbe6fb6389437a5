"""Arrays of rows over time and sequences, [T, B, F] or [B, T, F], as kernels take them: by address and two strides."""

from __future__ import annotations

from math import prod
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.contract import Case, cells
from pytest_ecornn.implementations._cuda.kernel import TensorArg


class Sizes(Protocol):
    @property
    def steps(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def batch_first(self) -> bool: ...


def index_overflow_reason(case: Case) -> str | None:
    """Why a kernel's numbers of 32 bits do not suffice for the case, or None."""
    largest = max(case.steps, len(cells.get(case.cell).gates) * case.batch * case.hidden_size)
    return f"T and G * B * H must be below 2^30, got {largest}" if largest >= 2**30 else None


def shape_of(sizes: Sizes, width: int) -> tuple[int, int, int]:
    return (sizes.batch, sizes.steps, width) if sizes.batch_first else (sizes.steps, sizes.batch, width)


def sizes_of(rows: Tensor, batch_first: bool) -> tuple[int, int]:
    """Steps and sequences of such an array."""
    return (rows.shape[1], rows.shape[0]) if batch_first else (rows.shape[0], rows.shape[1])


def strided_arguments(sizes: Sizes, name: str, element: torch.dtype, width: int, is_optional: bool = False) -> dict[str, Any]:
    """A kernel's arguments for such an array: its address, and the strides of its steps and sequences."""
    shape = shape_of(sizes, width)
    return {name: TensorArg(element, prod(shape), is_optional, shape), f"{name}_step": np.int64, f"{name}_sequence": np.int64}


def strides(sizes: Sizes, name: str, rows: Tensor | None) -> dict[str, int]:
    """Values of a kernel's two stride arguments for such an array, 0 for none."""
    outer_strides = (0, 0) if rows is None else rows.stride()[:2]
    step, sequence = reversed(outer_strides) if sizes.batch_first else outer_strides
    return {f"{name}_step": step, f"{name}_sequence": sequence}


def contiguous_last_dim(x: Tensor) -> Tensor:
    """x, or a copy whose last dimension is without gaps."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
