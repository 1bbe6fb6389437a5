"""Forms of a grid for many sequences: a persistent GEMM a step by wgmma (kernels/wgmma/).

Forward a group's blocks are in clusters of 1 or 2. Those of a cluster multiply the same rows, of all its units, each by its
part of the columns. So a block reads a part of the states alone, and sends sums to the others. Backward blocks are in rows and
columns, as in other grids. A load warp copies what a block multiplies from the L2 cache into stages of shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd

from pytest_ecornn.implementations.persistent_gpu.config import FRAGMENT_REGISTERS, TILE, Form

_WARPGROUP = 128
_ROWS = 64  # of an M tile of wgmma
_FRAGMENT_WORDS = 16
_FEWEST_IN_SMEM = 5  # fragments
_MMA_REGISTERS, _POINTWISE_REGISTERS, _LOAD_REGISTERS = 184, 104, 40  # 512 threads have 128 each


@dataclass(frozen=True)
class WgmmaConfig(Form):
    """n_tiles: tiles of 8 sequences that are multiplied as one, in a pass. `tiles` counts passes.

    k_partitions: parts of a block's columns, one of each warpgroup; with 1 each has half of the rows. chunk_fragments: a warp's
    fragments that multiply a chunk of what is exchanged. stages: of chunks in shared memory, of each partition. sum_buffers: of
    sums. pointwise_batch: sequences whose gates are computed at once.
    """

    n_tiles: int = 4
    chunk_fragments: int = 2
    stages: int = 4
    sum_buffers: int = 2
    pointwise_batch: int = 16

    @property
    def kind(self) -> str:
        return "grid, wgmma"

    @property
    def wide(self) -> int:
        return TILE * self.n_tiles

    @property
    def block_rows(self) -> int:
        """Rows of the weights that a block multiplies."""
        raise NotImplementedError

    @property
    def block_columns(self) -> float:
        """Columns of the weights that a block multiplies, their mean where they are not alike."""
        raise NotImplementedError

    @property
    def m_tiles_per_pass(self) -> int:
        """M tiles of 64 rows of a warpgroup."""
        return ceil(self.block_rows / (_ROWS * 2 // self.k_partitions))

    @property
    def k_chunks(self) -> int:
        """Chunks of a partition's columns."""
        words = self.block_columns * self.problem.arithmetic.bytes / 4
        return ceil(words / (_FRAGMENT_WORDS * self.chunk_fragments * self.k_partitions))

    @property
    def fragments(self) -> int:
        return self.m_tiles_per_pass * self.k_chunks * self.chunk_fragments

    @property
    def pointwise_threads(self) -> int:
        return _WARPGROUP

    @property
    def pointwise_tiles(self) -> int:
        """Tiles of `pointwise_batch` sequences of a group."""
        return self.tiles * self.wide // self.pointwise_batch

    @property
    def states_per_thread(self) -> int:
        return ceil(self.units * self.pointwise_batch / self.pointwise_threads)

    @property
    def _non_mma_threads(self) -> int:
        return 2 * _WARPGROUP

    @property
    def mma_warp_registers(self) -> int:
        return _MMA_REGISTERS

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk of states of a pass; split float32 has two parts."""
        return self.planes * self.chunk_fragments * _FRAGMENT_WORDS * 4 * self.wide

    @property
    def planes(self) -> int:
        return 1 + self.problem.arithmetic.is_3xtf32

    @property
    def block_chunks(self) -> int:
        """Chunks of a block's columns."""
        return self.k_partitions * self.k_chunks

    @property
    def sum_bytes(self) -> int:
        """Bytes of a buffer of the sums that a block receives of a pass."""
        raise NotImplementedError

    @property
    def _stage_bytes(self) -> int:
        return self.k_partitions * self.stages * (self.chunk_bytes + 8)

    @property
    def max_reg_fragments(self) -> int:
        """Fragments that a thread has registers for, measured by compiling."""
        accumulators = 4 * self.n_tiles * self.m_tiles_per_pass
        if self.problem.arithmetic.is_3xtf32:
            others = 40 + 4 * self.n_tiles + 16 * (self.m_tiles_per_pass - 1)
        else:
            others = 40 + 12 * self.chunk_fragments * self.m_tiles_per_pass
        return (_MMA_REGISTERS - accumulators - others) // FRAGMENT_REGISTERS

    @property
    def preferred_reg_fragments(self) -> int:
        """Fragments in registers that leave none to shared memory, or several: with 1 to 4 there a form was wrong on a GPU."""
        left = self.fragments - self.max_reg_fragments
        return self.fragments - _FEWEST_IN_SMEM if 0 < left < _FEWEST_IN_SMEM else self.max_reg_fragments

    @property
    def allowed_spilled_fragments(self) -> int:
        """Fragments beyond `max_reg_fragments`: so few, or less than none, that all `preferred_reg_fragments` are the most."""
        return self.preferred_reg_fragments - self.max_reg_fragments

    @property
    def width(self) -> int:
        return gcd(self.problem.hidden * self.problem.arithmetic.bytes, 4)

    @property
    def macros(self) -> dict[str, int]:
        own = {
            "TILES": self.pointwise_tiles,
            "N_TILES": self.n_tiles,
            "K_CHUNKS": self.k_chunks,
            "CHUNK_FRAGMENTS": self.chunk_fragments,
            "STATE_STAGES": self.stages,
            "SUM_BUFFERS": self.sum_buffers,
            "POINTWISE_BATCH": self.pointwise_batch,
            "POINTWISE_THREADS": self.pointwise_threads,
            "POINTWISE_REGISTERS": _POINTWISE_REGISTERS,
            "LOAD_REGISTERS": _LOAD_REGISTERS,
            "MMA_REGISTERS": _MMA_REGISTERS,
        }
        return super().macros | own

    def __str__(self) -> str:
        return f"{super().__str__()}; {self.wide} sequences at once by wgmma"


@dataclass(frozen=True)
class WgmmaForwardConfig(WgmmaConfig):
    """cluster: blocks that share their rows of W_hh, each with a part of the columns."""

    cluster: int = 1

    @property
    def cluster_blocks(self) -> int:
        return self.cluster

    @property
    def block_rows(self) -> int:
        return self.cluster * self.units * self._gates

    @property
    def block_columns(self) -> float:
        return self.problem.hidden / self.cluster

    @property
    def mailbox_bytes(self) -> int:
        return self.clusters * self.tiles * (128 + 2 * self.cluster * self.block_chunks * self.chunk_bytes)

    @property
    def sum_bytes(self) -> int:
        return 4 * self.cluster * self.k_partitions * self.units * (self._gates * self.wide + 4)

    @property
    def non_weight_smem_bytes(self) -> int:
        words = _rounded(self._stage_bytes + 16 * self.sum_buffers + 4 * self.cluster + 4)
        carried = 4 * self.pointwise_tiles * (self.states_per_thread * self.pointwise_threads + self.pointwise_batch)
        own = self.pointwise_tiles * self.pointwise_batch * self.units * self.problem.arithmetic.bytes
        return words + self.sum_buffers * self.sum_bytes + _rounded(16 * self.units + carried) + _rounded(own)

    @property
    def macros(self) -> dict[str, int]:
        return super().macros | {"CLUSTER": self.cluster}

    def __str__(self) -> str:
        return f"{super().__str__()}, clusters of {self.cluster}"


@dataclass(frozen=True)
class WgmmaBackwardConfig(WgmmaConfig):
    """A group's blocks in `grid_rows` rows: a block multiplies its column's gradients, for the units of its row."""

    @property
    def block_rows(self) -> int:
        return self.grid_cols * self.units

    @property
    def block_columns(self) -> float:
        return self.grid_rows * self.units * self._gates

    @property
    def sources(self) -> int:
        """Parts of a unit's sums: of each warpgroup of its row that has other columns."""
        return self.grid_cols * self.k_partitions

    @property
    def sum_bytes(self) -> int:
        return 4 * self.sources * self.units * self.wide

    @property
    def mailbox_bytes(self) -> int:
        counters = 128 * (self.grid_rows + self.grid_cols)
        gradients = self.grid_cols * self.block_chunks * self.chunk_bytes
        return self.clusters * self.tiles * (counters + 2 * gradients + 2 * self.blocks * self.sum_bytes)

    @property
    def non_weight_smem_bytes(self) -> int:
        words = _rounded(self._stage_bytes + 8 * self.sum_buffers + 4)
        carried = 4 * self.pointwise_tiles * (2 * self.states_per_thread * self.pointwise_threads + self.pointwise_batch)
        return words + self.sum_buffers * self.sum_bytes + _rounded(carried)


def _rounded(size: int) -> int:
    return ceil(size / 16) * 16
