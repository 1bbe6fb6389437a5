"""The gradients of both biases of a layer in one direction, sums over all rows, in one launch.

torch's sum and copy take the host two to three times as long, and the device twice as long where rows are few.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.implementations._cuda.compile import has_clusters
from pytest_ecornn.implementations._cuda.kernel import Kernel, storage_macro
from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations._cuda.memory import EmptyFactory, address

_SOURCE = Path(__file__).parent / "kernels" / "bias_gradients.cu"
_THREADS, _LANES, _BLOCKS, _VECTOR_BYTES = 256, 8, 8, 16
_ADDRESSES = ("d_gates", "d_recurrent", "d_bias_ih", "d_bias_hh")  # the first fields of the kernel's Params
_SIZES = ("rows", "columns", "hidden")


class BiasGradients:
    """The kernel for d_gates [D, rows, columns], and for GRU d_recurrent [D, rows, hidden], hidden 0 for none, without gaps.

    directions: D, left out of all shapes where it is 1.
    """

    def __init__(self, rows: int, columns: int, hidden: int, dtype: torch.dtype, device: torch.device, directions: int = 1):
        values = values_of(dtype, columns, hidden)
        clusters = directions * ceil((columns + hidden) / (_LANES * values))
        launch = Launch(clusters * _BLOCKS, _THREADS, shared_bytes(values))
        kernel = make_kernel(values, dtype, device)
        self._run = kernel.at(launch, _ADDRESSES, rows=rows, columns=columns, hidden=hidden)
        self._made = EmptyFactory((columns,) if directions == 1 else (directions, columns), dtype, device)

    def __call__(self, d_gates: Tensor, d_recurrent: Tensor | None) -> tuple[Tensor, Tensor]:
        """The gradients of bias_ih and bias_hh."""
        of_ih, of_hh = self._made(), self._made()
        self._run((d_gates.data_ptr(), address(d_recurrent), of_ih.data_ptr(), of_hh.data_ptr()))
        return of_ih, of_hh


def values_of(dtype: torch.dtype, *widths: int) -> int:
    """Columns that a thread reads at once: 16 bytes of them where all rows are multiples of that, else one."""
    vector = _VECTOR_BYTES // dtype.itemsize
    return 1 if any(width % vector for width in widths) else vector


def shared_bytes(values: int) -> int:
    """Shared memory of a block whose threads have that many columns each."""
    return 4 * (_THREADS // _LANES + 1) * _LANES * values


@lru_cache(maxsize=256)
def make_kernel(values: int, dtype: torch.dtype, device: torch.device) -> Kernel:
    arguments: dict[str, type[int] | type[np.int64]] = {**dict.fromkeys(_ADDRESSES, np.int64), **dict.fromkeys(_SIZES, int)}
    return Kernel(
        _SOURCE, "bias_gradients", macros(values, dtype), arguments, device, shared_bytes(values), cluster=_BLOCKS, is_lazy=True
    )


def macros(values: int, dtype: torch.dtype) -> tuple[tuple[str, str], ...]:
    definitions = {storage_macro(dtype): 1, "VALUES": values, "BLOCKS": _BLOCKS, "SHARED_BYTES": shared_bytes(values)}
    return tuple((name, str(value)) for name, value in definitions.items())


@lru_cache(maxsize=4096)
def _kernel_for(
    rows: int, columns: int, hidden: int, dtype: torch.dtype, device: torch.device, directions: int
) -> BiasGradients | None:
    """The kernel for those sizes; None for a device without clusters, and where there is nothing to add."""
    if not rows or not has_clusters(device):
        return None
    return BiasGradients(rows, columns, hidden, dtype, device, directions)


def bias_gradients(d_gates: Tensor, d_recurrent: Tensor | None, directions: int = 1) -> tuple[Tensor, Tensor]:
    """The gradients of bias_ih and bias_hh, [D, G*H], each in memory of its own.

    d_gates: [D, .., G*H], of the pre-activations, all dimensions between those of rows. d_recurrent: [D, .., H] of GRU, of
    W_hn h, None of other cells. directions: D, left out of all shapes where it is 1.
    """
    columns, hidden = d_gates.shape[-1], 0 if d_recurrent is None else d_recurrent.shape[-1]
    rows = d_gates.numel() // (directions * columns)
    kernel = _kernel_for(rows, columns, hidden, d_gates.dtype, d_gates.device, directions)
    if kernel is not None and d_gates.is_contiguous() and (d_recurrent is None or d_recurrent.is_contiguous()):
        return kernel(d_gates, d_recurrent)
    leading = (rows,) if directions == 1 else (directions, rows)
    of_ih = d_gates.reshape(*leading, columns).sum(-2)
    if d_recurrent is None:
        return of_ih, of_ih.clone()
    return of_ih, torch.cat((of_ih[..., : columns - hidden], d_recurrent.reshape(*leading, hidden).sum(-2)), -1)


def clear_cache() -> None:
    """Clears the cache of kernels, so that other builds are used from now on."""
    _kernel_for.cache_clear()
    make_kernel.cache_clear()
