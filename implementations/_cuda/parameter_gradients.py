"""The gradients of all parameters of a small layer, both directions, in one launch.

Three products and a sum of torch's take the host four times as long, which is more than the device needs for them.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.implementations._cuda.bias_gradients import values_of
from pytest_ecornn.implementations._cuda.kernel import Kernel
from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations._cuda.memory import EmptyFactory, address, zeros

_SOURCE = Path(__file__).parent / "kernels" / "parameter_gradients.cu"
_THREADS, _TILE, _CHUNK, _BLOCKS, _VECTOR_BYTES = 256, 64, 16, 8, 16
_SMS, _MAX_BLOCKS_PER_SM = 132, 2  # of an H100; of a launch that splits rows
_SHARED_BYTES = 4 * (2 * 2 * _CHUNK * _TILE + _TILE)
# The fields of the kernel's Params.
_ADDRESSES = (
    "d_gates", "d_recurrent", "inputs", "output", "initial", "d_weight_ih", "d_weight_hh", "d_bias_ih", "d_bias_hh",
    "partial_sums", "arrivals",
)  # fmt: skip
_SIZES = ("rows", "batch", "columns", "hidden", "width", "directions", "splits")
# Time on an H200, us, fitted by tests/tools/gradients_times.py: of a launch, of a block, and of adding splits' sums; of a chunk
# by the size of an element, read by vectors or by elements. Blocks that share a multiprocessor take _SHARED_SM of their sum.
_LAUNCH_US, _BLOCK_US, _ADDING_US, _SHARED_SM = 1.4, 2.2, 5.2, 0.87
_CHUNK_US = {4: (0.83, 1.43), 2: (1.04, 1.44)}


def launch_us(rows: int, columns: int, hidden: int, width: int, dtype: torch.dtype, directions: int = 1) -> float:
    """Time of a launch on an H200. Sizes are ParameterGradients'."""
    return _fastest(rows, _tiles(columns, hidden, width, directions), _chunk_us(columns, hidden, width, dtype))[0]


def _chunk_us(columns: int, hidden: int, width: int, dtype: torch.dtype) -> float:
    by_vectors, by_elements = _CHUNK_US[dtype.itemsize]
    return by_vectors if values_of(dtype, columns, hidden, width) > 1 else by_elements


def _fastest(rows: int, tiles: int, chunk_us: float) -> tuple[float, int]:
    """The least time of a launch, us, and the clusters among which each tile's rows are then split."""
    chunks = ceil(rows / _CHUNK)
    max_splits = min(_MAX_BLOCKS_PER_SM * _SMS // (tiles * _BLOCKS), ceil(chunks / _BLOCKS))
    return min((_split_us(chunks, tiles, splits, chunk_us), splits) for splits in range(1, max(1, max_splits) + 1))


def _split_us(chunks: int, tiles: int, splits: int, chunk_us: float) -> float:
    share, adding_us = _SHARED_SM * tiles * _BLOCKS * splits / _SMS, _ADDING_US if splits > 1 else 0
    return _LAUNCH_US + max(1, share) * (_BLOCK_US + chunk_us * ceil(chunks / (_BLOCKS * splits))) + adding_us


def _tiles(columns: int, hidden: int, width: int, directions: int) -> int:
    return directions * ceil(columns / _TILE) * (ceil(width / _TILE) + ceil(hidden / _TILE))


class ParameterGradients:
    """The gradients of weight_ih, weight_hh, bias_ih and bias_hh of a layer in D directions.

    rows: T*B. columns: G*H. width: I. All tensors are without gaps. D is left out of their shapes where it is 1. splits: the
    clusters among which each tile's rows are split, None for the fastest number.
    """

    def __init__(
        self, rows: int, batch: int, columns: int, hidden: int, width: int, dtype: torch.dtype, device: torch.device,
        directions: int = 1, splits: int | None = None,
    ):  # fmt: skip
        tiles = _tiles(columns, hidden, width, directions)
        splits = splits or _fastest(rows, tiles, _chunk_us(columns, hidden, width, dtype))[1]
        launch = Launch(tiles * splits * _BLOCKS, _THREADS, _SHARED_BYTES)
        sizes = dict(zip(_SIZES, (rows, batch, columns, hidden, width, directions, splits), strict=True))
        values = values_of(dtype, columns, hidden, width)
        self._by_elements = make_kernel(1, dtype, device).at(launch, _ADDRESSES, **sizes)
        self._by_vectors = make_kernel(values, dtype, device).at(launch, _ADDRESSES, **sizes) if values > 1 else None
        shapes = ((columns, width), (columns, hidden), (columns,), (columns,))
        leading = () if directions == 1 else (directions,)
        self._made = [EmptyFactory((*leading, *shape), dtype, device) for shape in shapes]
        self._partial_sums = EmptyFactory((launch.grid, _THREADS, 4), torch.float32, device) if splits > 1 else None
        self._arrivals_bytes, self._device = tiles * _BLOCKS * 4, device

    def __call__(
        self, d_gates: Tensor, d_recurrent: Tensor | None, inputs: Tensor, output: Tensor, initial: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four gradients.

        d_gates: [D, T, B, G*H]. d_recurrent: [D, T, B, H] of GRU. inputs: [T, B, I]. output: [T, B, D*H]. initial: before
        the first step the states [D, B, H], None for zeros.
        """
        weight_ih, weight_hh, bias_ih, bias_hh = [make() for make in self._made]
        read = d_gates.data_ptr(), address(d_recurrent), inputs.data_ptr(), output.data_ptr(), address(initial)
        is_aligned = (read[0] | read[1] | read[2] | read[3] | read[4]) % _VECTOR_BYTES == 0
        run = self._by_vectors if is_aligned and self._by_vectors is not None else self._by_elements
        partial_sums = arrivals = None
        if self._partial_sums is not None:
            partial_sums, arrivals = self._partial_sums(), zeros(self._arrivals_bytes, self._device)
        written = weight_ih.data_ptr(), weight_hh.data_ptr(), bias_ih.data_ptr(), bias_hh.data_ptr()
        run((*read, *written, address(partial_sums), address(arrivals)))
        return weight_ih, weight_hh, bias_ih, bias_hh


@lru_cache(maxsize=256)
def make_kernel(values: int, dtype: torch.dtype, device: torch.device) -> Kernel:
    arguments: dict[str, type[int] | type[np.int64]] = {**dict.fromkeys(_ADDRESSES, np.int64), **dict.fromkeys(_SIZES, int)}
    return Kernel(
        _SOURCE, "parameter_gradients", macros(values, dtype), arguments, device, _SHARED_BYTES, cluster=_BLOCKS, is_lazy=True
    )


def macros(values: int, dtype: torch.dtype) -> tuple[tuple[str, str], ...]:
    """The macros with which the source is compiled. values: elements that are read at once."""
    storage = str(dtype).removeprefix("torch.").upper()
    found = {f"STORAGE_{storage}": 1, "VALUES": values, "BLOCKS": _BLOCKS, "SHARED_BYTES": _SHARED_BYTES}
    return tuple((name, str(value)) for name, value in found.items())


get_parameter_gradients = lru_cache(maxsize=4096)(ParameterGradients)


def clear_cache() -> None:
    """Clears the caches of kernels, so that other builds are used from now on."""
    get_parameter_gradients.cache_clear()
    make_kernel.cache_clear()
