"""The gradients of all parameters of small layers, both directions, in one launch.

Three products and a sum of torch's take the host four times as long, which is more than the device needs for them.
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

from pytest_ecornn.implementations._cuda.bias_gradients import values_of
from pytest_ecornn.implementations._cuda.kernel import Kernel, storage_macro
from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations._cuda.memory import EmptyFactory, address, zeros

_SOURCE = Path(__file__).parent / "kernels" / "parameter_gradients.cu"
_THREADS, _TILE, _CHUNK, _BLOCKS, _VECTOR_BYTES = 256, 64, 16, 8, 16
_SMS, _MAX_BLOCKS_PER_SM = 132, 2  # of an H100; of a launch that splits rows
_SHARED_BYTES = 4 * (2 * 2 * _CHUNK * _TILE + _TILE) + 8 * 10  # and the fields of a layer
_MAX_LAYERS, _MAX_WAITING_BYTES = 4, 2**24  # of a launch; of gradients of gates that wait for another layer's
# The fields of the kernel's Params, first those of each layer.
_OF_LAYER = (
    "d_gates", "d_recurrent", "inputs", "output", "initial", "d_weight_ih", "d_weight_hh", "d_bias_ih", "d_bias_hh",
)  # fmt: skip
_OF_ALL = ("partial_sums", "arrivals")
_SIZES = ("rows", "batch", "columns", "hidden", "directions", "splits")
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


class LayerTensors(NamedTuple):
    """Of a layer in D directions, all without gaps. D is left out of the shapes where it is 1.

    d_gates: [D, T, B, G*H]. d_recurrent: [D, T, B, H] of GRU. inputs: [T, B, I]. output: [T, B, D*H]. initial: before the first
    step the states [D, B, H], None for zeros.
    """

    d_gates: Tensor
    d_recurrent: Tensor | None
    inputs: Tensor
    output: Tensor
    initial: Tensor | None = None


class ParameterGradients:
    """The gradients of weight_ih, weight_hh, bias_ih and bias_hh of a group of layers in D directions.

    rows: T*B. columns: G*H. widths: I of each layer. splits: the clusters among which each tile's rows are split, None for the
    fastest number.
    """

    def __init__(
        self, rows: int, batch: int, columns: int, hidden: int, widths: tuple[int, ...], dtype: torch.dtype,
        device: torch.device, directions: int = 1, splits: int | None = None,
    ):  # fmt: skip
        tiles = sum(_tiles(columns, hidden, width, directions) for width in widths)
        splits = splits or _fastest(rows, tiles, max(_chunk_us(columns, hidden, width, dtype) for width in widths))[1]
        launch = Launch(tiles * splits * _BLOCKS, _THREADS, _SHARED_BYTES)
        sizes = dict(zip(_SIZES, (rows, batch, columns, hidden, directions, splits), strict=True))
        layers, values = kernel_layers(len(widths)), values_of(dtype, columns, hidden, *widths)
        others = layers - len(widths)
        sizes |= dict(zip(_of_layers(layers, "width"), widths + (0,) * others, strict=True))
        addresses = [*_of_layers(layers, *_OF_LAYER), *_OF_ALL]
        self._by_elements = make_kernel(1, dtype, device, layers).at(launch, addresses, **sizes)
        self._by_vectors = make_kernel(values, dtype, device, layers).at(launch, addresses, **sizes) if values > 1 else None
        leading = () if directions == 1 else (directions,)
        shapes = [((columns, width), (columns, hidden), (columns,), (columns,)) for width in widths]
        self._made = [[EmptyFactory((*leading, *shape), dtype, device) for shape in of_layer] for of_layer in shapes]
        self._others = (0,) * (len(_OF_LAYER) * others)
        self._partial_sums = EmptyFactory((launch.grid, _THREADS, 4), torch.float32, device) if splits > 1 else None
        self._arrivals_bytes, self._device = tiles * _BLOCKS * 4, device

    def __call__(self, layers: Sequence[LayerTensors]) -> list[list[Tensor]]:
        """The four gradients of each layer."""
        results: list[list[Tensor]] = []
        addresses: list[int] = []
        bits = 0
        for (d_gates, d_recurrent, inputs, output, initial), factories in zip(layers, self._made, strict=True):
            made = [make() for make in factories]
            read = d_gates.data_ptr(), address(d_recurrent), inputs.data_ptr(), output.data_ptr(), address(initial)
            bits |= read[0] | read[1] | read[2] | read[3] | read[4]
            addresses += (*read, *[gradient.data_ptr() for gradient in made])
            results.append(made)
        run = self._by_elements if bits % _VECTOR_BYTES or self._by_vectors is None else self._by_vectors
        partial_sums = arrivals = None
        if self._partial_sums is not None:
            partial_sums, arrivals = self._partial_sums(), zeros(self._arrivals_bytes, self._device)
        run((*addresses, *self._others, address(partial_sums), address(arrivals)))
        return results


@lru_cache(maxsize=256)
def make_kernel(values: int, dtype: torch.dtype, device: torch.device, layers: int = 1) -> Kernel:
    of_layers = _of_layers(layers, *_OF_LAYER, "width")
    arguments: dict[str, type[int] | type[np.int64]] = dict.fromkeys((*of_layers, *_OF_ALL), np.int64)
    arguments |= dict.fromkeys(_SIZES, int)
    macros_of = macros(values, dtype, layers)
    return Kernel(_SOURCE, "parameter_gradients", macros_of, arguments, device, _SHARED_BYTES, cluster=_BLOCKS, is_lazy=True)


def _of_layers(layers: int, *names: str) -> list[str]:
    """The fields of these names, of each layer."""
    return [f"{name}_{number}" for number in range(layers) for name in names]


def macros(values: int, dtype: torch.dtype, layers: int = 1) -> tuple[tuple[str, str], ...]:
    """The macros with which the source is compiled. values: elements that are read at once."""
    definitions = {
        storage_macro(dtype): 1,
        "VALUES": values,
        "BLOCKS": _BLOCKS,
        "SHARED_BYTES": _SHARED_BYTES,
        "LAYERS": layers,
    }
    return tuple((name, str(value)) for name, value in definitions.items())


def may_share_launch(layers: Sequence[LayerTensors], layer: LayerTensors) -> bool:
    """Whether a layer's gradients are computed with others': where all read as widely, and little memory waits for it."""
    if not layers:
        return True
    inputs = [some.inputs for some in (*layers, layer)]
    reads = {(rows.data_ptr() | rows.shape[2] * rows.itemsize) % _VECTOR_BYTES == 0 for rows in inputs}
    waiting = [gradient for some in layers for gradient in (some.d_gates, some.d_recurrent) if gradient is not None]
    is_little = sum(gradient.nbytes for gradient in waiting) <= _MAX_WAITING_BYTES
    return len(layers) < _MAX_LAYERS and len(reads) == 1 and is_little


def kernel_layers(layers: int) -> int:
    """For how many layers the kernel is compiled that runs so many: one, whose launch takes the host less, or the most."""
    return 1 if layers == 1 else _MAX_LAYERS


get_parameter_gradients = lru_cache(maxsize=4096)(ParameterGradients)


def clear_cache() -> None:
    """Clears the caches of kernels, so that other builds are used from now on."""
    get_parameter_gradients.cache_clear()
    make_kernel.cache_clear()
