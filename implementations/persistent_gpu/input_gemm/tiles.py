"""Tiles of the float32 input product on tensor cores: what a block computes, and which products cuBLAS is slower at."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

_STAGES, _STAGE_K_TILES = 3, 2  # as in kernels/input_gemm_3xtf32.cu
_K_TILE, _K_TILE_BYTES, _VALUES = 16, 64, 4
_NUM_SMS = 132  # of an H100


class GemmTile(NamedTuple):
    """Times 16 gates and times 8 rows of x that a warp computes; a block is two by two warps.

    The others predict a launch's time, us, fitted to 252 products on an H100 (docs/notes/persistent_gpu.md). launch_us: of no
    products. latency_us: a K tile of one block. k_tile_us, block_us: a K tile, and what is not products, of each further block
    of a multiprocessor.
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
        return _STAGES * _STAGE_K_TILES * (self.gates + self.rows) * _K_TILE_BYTES

    @property
    def macros(self) -> tuple[tuple[str, str], ...]:
        found = {"STORAGE_FLOAT32": 1, "USE_3XTF32": 1, "WARP_M_TILES": self.m_tiles, "WARP_N_TILES": self.n_tiles}
        return tuple((name, str(value)) for name, value in (found | {"SHARED_BYTES": self.shared_bytes}).items())

    def blocks(self, rows: int, columns: int) -> int:
        return ceil(columns / self.gates) * ceil(rows / self.rows)

    def estimated_us(self, rows: int, width: int, columns: int) -> float:
        """A launch's time on an H100, within 10 % of most of those that were measured."""
        of_sm = self.blocks(rows, columns) / _NUM_SMS
        of_sm = ceil(of_sm) if of_sm < _FEW_BLOCKS else of_sm
        k_tiles = ceil(width / _K_TILE)
        return self.launch_us + k_tiles * max(self.latency_us, of_sm * self.k_tile_us) + of_sm * self.block_us


_FEW_BLOCKS = 4  # of a multiprocessor, so that it waits for those that have one more
TILES = (
    GemmTile(2, 2, 1.72, 0.32, 0.201, 0.07),
    GemmTile(2, 4, 1.51, 0.394, 0.332, 0.269),
    GemmTile(3, 4, 1.55, 0.545, 0.457, 0.327),
    GemmTile(4, 4, 1.15, 0.684, 0.59, 0.956),
)
# Inputs up to which cuBLAS takes longer, by the fewest blocks of the smallest tile.
_MAX_WIDTHS = ((1, 128), (32, 256), (128, 512), (_NUM_SMS, 2**30))


def is_applicable(rows: int, width: int, columns: int) -> bool:
    """Whether the kernel computes such a product, in less time than cuBLAS."""
    blocks = TILES[0].blocks(rows, columns)
    return width % _VALUES == 0 and any(blocks >= fewest and width <= most for fewest, most in _MAX_WIDTHS)


def select_tile(rows: int, width: int, columns: int) -> GemmTile:
    """The tile of the least estimated time."""
    return min(TILES, key=lambda tile: tile.estimated_us(rows, width, columns))
