"""The input product of float32 layers by 3xTF32 on tensor cores, where that takes less time than cuBLAS.

cuBLAS multiplies float32 outside of the tensor cores.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.implementations._common.input_gemm import InputGemm, make_input_gemm
from pytest_ecornn.implementations._cuda.compile import has_clusters
from pytest_ecornn.implementations._cuda.kernel import Kernel
from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations._cuda.memory import EmptyFactory

_STAGES, _STAGE_K_TILES = 3, 2  # as in kernels/input_gemm_3xtf32.cu
_K_TILE, _K_TILE_ROW_BYTES, _VECTOR_ELEMENTS = 16, 64, 4
_NUM_SMS = 132  # of an H100
_FEW_BLOCKS = 4  # of a multiprocessor: below it the time is that of those with the most blocks
_SOURCE = Path(__file__).parents[1] / "kernels" / "input_gemm_3xtf32.cu"
_THREADS, _VECTOR_BYTES = 128, 16
_ADDRESSES, _SIZES = ("x", "weight_ih", "gates"), ("rows", "inputs", "columns")  # the fields of the kernel's Params


class GemmTile(NamedTuple):
    """A warp's tile: m_tiles times 16 gates by n_tiles times 8 rows of x. A block is two by two warps.

    The other fields predict a launch's time in us, fitted to 252 products on an H100 (docs/notes/persistent_gpu.md). launch_us:
    its fixed part. latency_us: the least of a K tile. k_tile_us: what each block of a multiprocessor adds to a K tile.
    block_us: prologue and epilogue of each.
    """

    m_tiles: int
    n_tiles: int
    launch_us: float
    latency_us: float
    k_tile_us: float
    block_us: float

    @property
    def gates(self) -> int:
        """Gates of a block."""
        return 2 * 16 * self.m_tiles

    @property
    def rows(self) -> int:
        """Rows of x of a block."""
        return 2 * 8 * self.n_tiles

    @property
    def shared_bytes(self) -> int:
        return _STAGES * _STAGE_K_TILES * (self.gates + self.rows) * _K_TILE_ROW_BYTES

    @property
    def macros(self) -> tuple[tuple[str, str], ...]:
        values = {"STORAGE_FLOAT32": 1, "USE_3XTF32": 1, "WARP_M_TILES": self.m_tiles, "WARP_N_TILES": self.n_tiles}
        return tuple((name, str(value)) for name, value in (values | {"SHARED_BYTES": self.shared_bytes}).items())

    def blocks(self, rows: int, columns: int) -> int:
        return ceil(columns / self.gates) * ceil(rows / self.rows)

    def estimated_us(self, rows: int, width: int, columns: int) -> float:
        """Estimates the us of a launch on an H100; most measured times are within 10 %."""
        blocks_per_sm = self.blocks(rows, columns) / _NUM_SMS
        blocks_per_sm = ceil(blocks_per_sm) if blocks_per_sm < _FEW_BLOCKS else blocks_per_sm
        k_tiles = ceil(width / _K_TILE)
        return self.launch_us + k_tiles * max(self.latency_us, blocks_per_sm * self.k_tile_us) + blocks_per_sm * self.block_us


TILES = (
    GemmTile(2, 2, 1.72, 0.32, 0.201, 0.07),
    GemmTile(2, 4, 1.51, 0.394, 0.332, 0.269),
    GemmTile(3, 4, 1.55, 0.545, 0.457, 0.327),
    GemmTile(4, 4, 1.15, 0.684, 0.59, 0.956),
)
# Fewest blocks of the smallest tile, and the largest I at which cuBLAS then takes longer: it splits long sums among blocks.
_MAX_WIDTHS = ((1, 128), (32, 256), (128, 512), (_NUM_SMS, 2**30))


def is_applicable(rows: int, width: int, columns: int) -> bool:
    """Whether the kernel takes products of those sizes, and took less time than cuBLAS on an H100."""
    blocks = TILES[0].blocks(rows, columns)
    return width % _VECTOR_ELEMENTS == 0 and any(blocks >= fewest and width <= most for fewest, most in _MAX_WIDTHS)


def select_tile(rows: int, width: int, columns: int) -> GemmTile:
    """The tile of the least estimated time."""
    return min(TILES, key=lambda tile: tile.estimated_us(rows, width, columns))


class InputGemm3xTF32:
    """Computes gate pre-activations [T, B, G*H], or [B, T, G*H], of x in the same order, in one launch.

    outer: T and B, or B and T. width: I. gate_width: G*H. fallback: multiplies arrays that do not start at multiples of 16
    bytes.
    """

    def __init__(
        self, outer: tuple[int, int], width: int, gate_width: int, device: torch.device, fallback: InputGemm, tile: GemmTile
    ):
        rows = outer[0] * outer[1]
        launch = Launch(tile.blocks(rows, gate_width), _THREADS, tile.shared_bytes)
        sizes = dict(zip(_SIZES, (rows, width, gate_width), strict=True))
        self.kernel = make_kernel(tile, device)
        self._run = self.kernel.at(launch, _ADDRESSES, **sizes)
        self._made, self._fallback = EmptyFactory((*outer, gate_width), torch.float32, device), fallback

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """x: [T, B, I] or [B, T, I]. weight: [G*H, I]. Both are without gaps."""
        operands = x.data_ptr(), weight.data_ptr()
        if (operands[0] | operands[1]) % _VECTOR_BYTES:
            return self._fallback(x, weight)
        gates = self._made()
        self._run((*operands, gates.data_ptr()))
        return gates


def make_fastest_input_gemm(
    outer: tuple[int, int], width: int, gate_width: int, dtype: torch.dtype, device: torch.device, tf32: bool
) -> InputGemm | InputGemm3xTF32 | None:
    """The product of those sizes by this kernel or by cuBLAS; None where the gates' rows need copies as well.

    Other GPUs than Hopper have cuBLAS: on some of them TF32 is no faster than float32.
    """
    gemm, rows = make_input_gemm(outer, width, gate_width, dtype, device, tf32), outer[0] * outer[1]
    if gemm is None or dtype != torch.float32 or tf32 or not has_clusters(device) or not is_applicable(rows, width, gate_width):
        return gemm
    return InputGemm3xTF32(outer, width, gate_width, device, gemm, select_tile(rows, width, gate_width))


@lru_cache(maxsize=64)
def make_kernel(tile: GemmTile, device: torch.device) -> Kernel:
    """The compiled kernel of a tile."""
    arguments: dict[str, type[int] | type[np.int64]] = {**dict.fromkeys(_ADDRESSES, np.int64), **dict.fromkeys(_SIZES, int)}
    return Kernel(_SOURCE, "input_gemm_3xtf32", tile.macros, arguments, device, tile.shared_bytes, is_lazy=True)
