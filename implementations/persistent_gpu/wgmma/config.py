"""Forms of a grid for many sequences: a persistent GEMM a step by wgmma (kernels/wgmma/).

Forward a group's blocks are in clusters of 1 or 2. Those of a cluster multiply the same rows, of all its units, each by its
part of the columns. So a block reads a part of the states alone, and sends sums to the others. Backward blocks are in rows and
columns, as in other grids. Load warps copy what a block multiplies from the L2 cache into stages of shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import gcd
from operator import add
from typing import Any, NamedTuple

import numpy as np

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, ProblemSize
from pytest_ecornn.implementations._common.sizes import axes, ceil_div, maximum, minimum, where
from pytest_ecornn.implementations.persistent_gpu.config import FRAGMENT_REGISTERS, TILE, US_PER_CLOCK, Candidates, Form

_WARPGROUP = 128
_ROWS = 64  # of an M tile of wgmma
_FRAGMENT_WORDS = 16
_FEWEST_IN_SMEM = 5  # fragments
_LOAD_WARPGROUP_WARPS = 4
_MMA_REGISTERS, _POINTWISE_REGISTERS, _LOAD_REGISTERS = 184, 104, 40  # 512 threads have 128 each
MIN_WGMMA_BATCH = 24
_N_TILES = (2, 4, 6, 8)
_MAX_GROUPS = 16
_BLOCK_ROWS = (64, 128, 256)  # that fill M tiles of one warpgroup or two
_MORE_UNITS = 2  # than there must be, backward
_MAX_M_TILES = 2  # of a warpgroup
_MAX_STATES = 2  # of a pointwise thread at once
_BUFFERS = ((2, 4), (2, 3), (1, 4))  # of sums, stages of each partition

# A multiprocessor's clocks of 64 rows, 8 columns and 32 bytes of K, and of any number of columns at least.
_WGMMA_CLOCKS, _LEAST_WGMMA_CLOCKS = 7.4, 23


class PassTimes(NamedTuple):
    """us of the roles in a pass, fitted to 180 steps each way on an H200.

    chunk, kib: to load a chunk of each partition, and each KiB. product, split_product: of `product_us`; more of split float32.
    m_tile: of the MMA warps for the sums of an M tile. tile, gate, source: of the pointwise warps for a tile, each gate of a
    state, and each source of its sums. rest: of each pass. exchange: from a pass to its next step. overlap: the higher the
    less do roles delay each other (`_overlapped`). factor_16_bits: of a step in 16 bits beside other grids', whose
    estimates are too long forward and too short backward.
    """

    chunk: float
    kib: float
    product: float
    split_product: float
    m_tile: float
    tile: float
    gate: float
    source: float
    rest: float
    exchange: float
    overlap: int
    factor_16_bits: float


_FORWARD_TIMES = PassTimes(0.1265, 0.0063, 0.885, 0.213, 0.281, 0.185, 0.08, 0.0217, 0.387, 1.959, 2, 1.1)
_BACKWARD_TIMES = PassTimes(0.152, 0.0063, 0.661, 0.335, 0.503, 0.44, 0.0675, 0.0177, 0, 2.656, 1, 0.85)


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
    def tile_batch(self) -> int:
        return TILE * self.n_tiles

    @property
    def block_rows(self) -> int:
        """Rows of the weights that a block multiplies."""
        raise NotImplementedError

    @property
    def block_columns(self) -> int:
        """Columns of the weights that a block multiplies, at most."""
        raise NotImplementedError

    @cached_property
    def m_tiles_per_pass(self) -> int:
        """M tiles of 64 rows of a warpgroup."""
        return ceil_div(self.block_rows, 2 * _ROWS // self.k_partitions)

    @cached_property
    def k_chunks(self) -> int:
        """Chunks of a partition's columns."""
        bytes_per_chunk = 4 * _FRAGMENT_WORDS * self.chunk_fragments * self.k_partitions
        return ceil_div(self.block_columns * self.problem.arithmetic.bytes, bytes_per_chunk)

    @cached_property
    def fragments(self) -> int:
        return self.m_tiles_per_pass * self.k_chunks * self.chunk_fragments

    @property
    def pointwise_threads(self) -> int:
        return _WARPGROUP

    @property
    def pointwise_tiles(self) -> int:
        """Tiles of `pointwise_batch` sequences of a group."""
        return self.tiles * self.tile_batch // self.pointwise_batch

    @cached_property
    def states_per_thread(self) -> int:
        return ceil_div(self.units * self.pointwise_batch, self.pointwise_threads)

    @property
    def _non_mma_threads(self) -> int:
        return 2 * _WARPGROUP

    @property
    def mma_warp_registers(self) -> int:
        return _MMA_REGISTERS

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk of states of a pass; split float32 has two parts."""
        return self.planes * _FRAGMENT_WORDS * 4 * self.chunk_fragments * self.tile_batch

    @property
    def planes(self) -> int:
        return 1 + self.problem.arithmetic.is_3xtf32

    @cached_property
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

    @cached_property
    def max_reg_fragments(self) -> int:
        """Fragments that a thread has registers for, measured by compiling."""
        accumulators = 4 * self.n_tiles * self.m_tiles_per_pass
        if self.problem.arithmetic.is_3xtf32:
            others = 40 + 4 * self.n_tiles + 16 * (self.m_tiles_per_pass - 1)
        else:
            others = 40 + 12 * self.chunk_fragments * self.m_tiles_per_pass
        return (_MMA_REGISTERS - accumulators - others) // FRAGMENT_REGISTERS

    @cached_property
    def preferred_reg_fragments(self) -> int:
        """Fragments in registers that leave none to shared memory, or several: with 1 to 4 there a form was wrong on a GPU."""
        left = self.fragments - self.max_reg_fragments
        return where((left > 0) & (left < _FEWEST_IN_SMEM), self.fragments - _FEWEST_IN_SMEM, self.max_reg_fragments)

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
            "MAX_LOAD_WARPS": _LOAD_WARPGROUP_WARPS - self.problem.is_backward,  # one of them loads sums
            "MMA_REGISTERS": _MMA_REGISTERS,
        }
        return super().macros | own

    def __str__(self) -> str:
        return f"{super().__str__()}; {self.tile_batch} sequences at once by wgmma"

    @property
    def sources(self) -> int:
        """Parts of a unit's sums."""
        raise NotImplementedError

    @cached_property
    def product_us(self) -> float:
        """Estimated us of a pass's product."""
        wgmmas = 2 * 2 * (3 if self.problem.arithmetic.is_3xtf32 else 1) * self.fragments  # two a fragment, of two warpgroups
        return wgmmas * maximum(_WGMMA_CLOCKS * self.n_tiles, _LEAST_WGMMA_CLOCKS) * US_PER_CLOCK

    @cached_property
    def step_us(self) -> float:
        """Estimated us of a step of all tiles: of all passes, or from one step of a tile to the next."""
        times = _BACKWARD_TIMES if self.problem.is_backward else _FORWARD_TIMES
        loads_us = self.k_chunks * times.chunk + self.block_chunks * self.chunk_bytes / 1024 * times.kib
        product_us = self.product_us * (times.product + times.split_product * self.problem.arithmetic.is_3xtf32)
        product_us = product_us + times.m_tile * self.m_tiles_per_pass
        state_us = times.gate * self._gates + times.source * self.sources
        pointwise_us = self.tile_batch / self.pointwise_batch * (times.tile + state_us * self.states_per_thread)
        pass_us = times.rest + _overlapped(times.overlap, loads_us, product_us, pointwise_us)
        factor = times.factor_16_bits if self.problem.arithmetic.bytes == 2 else 1
        return factor * _overlapped(times.overlap, self.tiles * pass_us, pass_us + times.exchange)


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
    def block_columns(self) -> int:
        return ceil_div(self.problem.hidden, self.cluster)

    @property
    def mailbox_bytes(self) -> int:
        return self.clusters * self.tiles * (128 + 2 * self.cluster * self.block_chunks * self.chunk_bytes)

    @property
    def sources(self) -> int:
        """Warpgroups of the cluster with a part of the columns."""
        return self.cluster * self.k_partitions

    @property
    def sum_bytes(self) -> int:
        return 4 * self.sources * self.units * (self._gates * self.tile_batch + 4)

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
    def block_columns(self) -> int:
        return self.grid_rows * self.units * self._gates

    @property
    def sources(self) -> int:
        """Warpgroups of the unit's row with a part of the columns."""
        return self.grid_cols * self.k_partitions

    @property
    def sum_bytes(self) -> int:
        return 4 * self.sources * self.units * self.tile_batch

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


def _overlapped(overlap: int, *times: float) -> float:
    """The longest of times that go on at once, and more the longer the others are: the root of the sum of their powers.

    overlap: 1 for squares, 2 for fourth powers. Square roots are exact, of one form as of many.
    """
    for _ in range(overlap):
        times = tuple(time * time for time in times)
    total = reduce(add, times)  # `sum` is more exact of numbers than of arrays
    for _ in range(overlap):
        total = np.sqrt(total)
    return total


def _rounded(size: int) -> int:
    return ceil_div(size, 16) * 16


def wgmma_configs(problem: ProblemSize, device: Device) -> Iterator[Candidates[WgmmaConfig]]:
    """Yields forms without their weights' places.

    Along the last axis they differ in buffers alone: the first that fits is best.
    """
    if device.largest_cluster > 1 and problem.batch >= MIN_WGMMA_BATCH:
        groups = range(1, min(_MAX_GROUPS, problem.batch // TILE, device.num_sms) + 1)
        yield _backward(problem, device, groups) if problem.is_backward else _forward(problem, device, groups)


def _forward(problem: ProblemSize, device: Device, of_groups: range) -> Candidates[WgmmaConfig]:
    """Blocks own as few units as they can, or fill M tiles by up to twice as many."""
    groups, cluster, rows, n_tiles, _ = axes(of_groups, (1, 2), (0, *_BLOCK_ROWS), _N_TILES, (0,))
    blocks = device.num_sms // groups
    fewest = ceil_div(problem.hidden, maximum(1, blocks // cluster * cluster))
    units = where(rows > 0, rows // (GATES[problem.cell] * cluster), fewest)
    is_possible = (rows == 0) | ((units > fewest) & (units <= 2 * fewest))
    own = ceil_div(problem.hidden, units * cluster) * cluster
    form = WgmmaForwardConfig(problem, units, own, 1, 1, is_grid=True, cluster=cluster)
    return _tilings(form, groups, n_tiles, is_possible & (own <= blocks))


def _backward(problem: ProblemSize, device: Device, of_groups: range) -> Candidates[WgmmaConfig]:
    """Blocks own few units; rows of blocks fill M tiles, each number of blocks once."""
    groups, more, rows, n_tiles, _ = axes(of_groups, range(_MORE_UNITS + 1), _BLOCK_ROWS, _N_TILES, (0,))
    blocks = device.num_sms // groups
    units = ceil_div(problem.hidden, blocks) + more
    needed = ceil_div(problem.hidden, units)
    cols, fewer = (minimum(needed, of_rows // units) for of_rows in (rows, where(rows > _BLOCK_ROWS[0], rows // 2, 0)))
    grid_rows = ceil_div(needed, maximum(1, cols))
    form = WgmmaBackwardConfig(problem, units, grid_rows * cols, 1, 1, is_grid=True, grid_rows=grid_rows)
    return _tilings(form, groups, n_tiles, (cols > fewer) & (form.blocks <= blocks))


def _tilings(form: WgmmaConfig, groups: int, n_tiles: int, is_possible: Any) -> Candidates[WgmmaConfig]:
    """The forms with tiles of several sizes and several numbers of buffers.

    Warpgroups divide the columns where one of them has room for all rows. Chunks are small where large ones have more padding.
    """
    sequences, size = ceil_div(form.problem.batch, groups), form.problem.arithmetic.bytes
    k_partitions = where(form.block_rows <= _BLOCK_ROWS[0], 2, 1)
    small_chunks = ceil_div(form.block_columns * size, 4 * _FRAGMENT_WORDS * k_partitions)
    sum_buffers, stages = np.transpose(_BUFFERS)
    form = replace(
        form, k_partitions=k_partitions, n_tiles=n_tiles, tiles=ceil_div(sequences, TILE * n_tiles), sum_buffers=sum_buffers,
        stages=stages, pointwise_batch=where(form.units <= _MAX_STATES * 8, 16, 8), chunk_fragments=2 - small_chunks % 2,
    )  # fmt: skip
    fits_warps = (form.m_tiles_per_pass <= _MAX_M_TILES) & (form.states_per_thread <= _MAX_STATES)
    return Candidates(form, is_possible & fits_warps & (form.clusters == groups))
