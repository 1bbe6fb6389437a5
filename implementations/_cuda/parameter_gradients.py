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
from pytest_ecornn.implementations._cuda.memory import EmptyFactory, address

_SOURCE = Path(__file__).parent / "kernels" / "parameter_gradients.cu"
_THREADS, _TILE, _CHUNK, _BLOCKS, _VECTOR_BYTES = 256, 64, 16, 8, 16
_SHARED_BYTES = 4 * (2 * 2 * _CHUNK * _TILE + _TILE)
# The fields of the kernel's Params.
_ADDRESSES = (
    "d_gates", "d_recurrent", "inputs", "output", "initial", "d_weight_ih", "d_weight_hh", "d_bias_ih", "d_bias_hh",
)  # fmt: skip
_SIZES = ("rows", "batch", "columns", "hidden", "width", "directions")


def launch_us(rows: int, columns: int, hidden: int, width: int, directions: int = 1) -> float:
    """Time of a launch on an H100, within 20 % of what was measured. Sizes are ParameterGradients'."""
    chunks = ceil(ceil(rows / _CHUNK) / _BLOCKS)  # of a block
    return 3.5 + max(1.0, _tiles(columns, hidden, width, directions) * _BLOCKS / 132) * (0.4 + 0.85 * chunks)


def _tiles(columns: int, hidden: int, width: int, directions: int) -> int:
    return directions * ceil(columns / _TILE) * (ceil(width / _TILE) + ceil(hidden / _TILE))


class ParameterGradients:
    """The gradients of weight_ih, weight_hh, bias_ih and bias_hh of a layer in D directions.

    rows: T*B. columns: G*H. width: I. All tensors are without gaps. D is left out of their shapes where it is 1.
    """

    def __init__(
        self, rows: int, batch: int, columns: int, hidden: int, width: int, dtype: torch.dtype, device: torch.device,
        directions: int = 1,
    ):  # fmt: skip
        launch = Launch(_tiles(columns, hidden, width, directions) * _BLOCKS, _THREADS, _SHARED_BYTES)
        sizes = dict(zip(_SIZES, (rows, batch, columns, hidden, width, directions), strict=True))
        values = values_of(dtype, columns, hidden, width)
        self._by_elements = make_kernel(1, dtype, device).at(launch, _ADDRESSES, **sizes)
        self._by_vectors = make_kernel(values, dtype, device).at(launch, _ADDRESSES, **sizes) if values > 1 else None
        shapes = ((columns, width), (columns, hidden), (columns,), (columns,))
        leading = () if directions == 1 else (directions,)
        self._made = [EmptyFactory((*leading, *shape), dtype, device) for shape in shapes]

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
        run((*read, weight_ih.data_ptr(), weight_hh.data_ptr(), bias_ih.data_ptr(), bias_hh.data_ptr()))
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
