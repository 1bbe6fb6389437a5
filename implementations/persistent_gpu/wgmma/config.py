"""Forms of a grid for many sequences: a persistent GEMM a step by wgmma (kernels/wgmma/).

Forward a group's blocks are in clusters of 1 or 2. Those of a cluster multiply the same rows, of all its units, each by its
part of the columns. So a block reads a part of the states alone, and sends sums to the others. Backward blocks are in rows and
columns, as in other grids. A load warp copies what a block multiplies from the L2 cache into stages of shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, ProblemSize
from pytest_ecornn.implementations.persistent_gpu.config import FRAGMENT_REGISTERS, TILE, Form

_WARPGROUP = 128
_ROWS = 64  # of an M tile of wgmma
_FRAGMENT_WORDS = 16
_FEWEST_IN_SMEM = 5  # fragments
_MMA_REGISTERS, _POINTWISE_REGISTERS, _LOAD_REGISTERS = 184, 104, 40  # 512 threads have 128 each
_MIN_BATCH = 24
_N_TILES = (2, 4, 6, 8)
_MAX_GROUPS = 16
_BLOCK_ROWS = (64, 128, 256)  # that fill M tiles of one warpgroup or two
_MORE_UNITS = 2  # than there must be, backward
_MAX_M_TILES = 2  # of a warpgroup
_MAX_STATES = 2  # of a pointwise thread at once
_BUFFERS = ((2, 4), (2, 3), (1, 4))  # of sums, stages of each partition


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


def wgmma_configs(problem: ProblemSize, device: Device) -> Iterator[Sequence[WgmmaConfig]]:
    """Yields forms without their weights' places: alternatives, of which the first that fits is best."""
    if device.largest_cluster == 1 or problem.batch < _MIN_BATCH:
        return
    for groups in range(1, min(_MAX_GROUPS, problem.batch // TILE) + 1):
        blocks = device.num_sms // groups
        yield from _backward(problem, blocks, groups) if problem.is_backward else _forward(problem, blocks, groups)


def _forward(problem: ProblemSize, blocks: int, groups: int) -> Iterator[Sequence[WgmmaConfig]]:
    for cluster in (1, 2):
        fewest = ceil(problem.hidden / max(1, blocks // cluster * cluster))
        of_rows = [rows // (GATES[problem.cell] * cluster) for rows in _BLOCK_ROWS]
        for units in sorted({fewest, *(units for units in of_rows if fewest < units <= 2 * fewest)}):
            own = ceil(problem.hidden / (units * cluster)) * cluster
            if own <= blocks:
                form = WgmmaForwardConfig(problem, units, own, 1, 1, is_grid=True, cluster=cluster)
                yield from _tilings(form, groups)


def _backward(problem: ProblemSize, blocks: int, groups: int) -> Iterator[Sequence[WgmmaConfig]]:
    fewest = ceil(problem.hidden / blocks)
    for units in range(fewest, fewest + _MORE_UNITS + 1):
        needed = ceil(problem.hidden / units)
        for cols in sorted({min(needed, rows // units) for rows in _BLOCK_ROWS} - {0}):
            grid_rows = ceil(needed / cols)
            if grid_rows * cols <= blocks:
                form = WgmmaBackwardConfig(problem, units, grid_rows * cols, 1, 1, is_grid=True, grid_rows=grid_rows)
                yield from _tilings(form, groups)


def _tilings(form: WgmmaConfig, groups: int) -> Iterator[Sequence[WgmmaConfig]]:
    """Yields the form with several sizes of tiles, each with several numbers of buffers.

    Warpgroups divide the columns where one of them has room for all rows. Chunks are small where large ones have more padding.
    """
    sequences, pointwise_batch = ceil(form.problem.batch / groups), 16 if form.units <= _MAX_STATES * 8 else 8
    form = replace(form, k_partitions=2 if form.block_rows <= _BLOCK_ROWS[0] else 1, pointwise_batch=pointwise_batch)
    form = min((replace(form, chunk_fragments=fragments) for fragments in (2, 1)), key=lambda one: one.fragments)
    if form.m_tiles_per_pass > _MAX_M_TILES or form.states_per_thread > _MAX_STATES:
        return
    for n_tiles in _N_TILES:
        found = replace(form, tiles=ceil(sequences / (TILE * n_tiles)), n_tiles=n_tiles)
        if found.clusters == groups:
            yield [replace(found, sum_buffers=sum_buffers, stages=stages) for sum_buffers, stages in _BUFFERS]
