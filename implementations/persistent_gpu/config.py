"""The form in which persistent_gpu runs a layer: how it is spread over the chip, its launch, its macros and a step's time.

Sizes of a form are ints. Of many forms that are compared at once they are arrays, and so is what follows from them
(heuristics.py). Times are estimates, fitted by hand to steps on an H200, blocks and wgmma on an H100; no script repeats it.
`python -m pytest_ecornn.suites.forms_gpu` measures such steps. Source: tables of docs/notes/persistent_gpu.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import gcd
from typing import Any, Generic, Self, TypeVar

import numpy as np

from pytest_ecornn.implementations._common.recurrent_problem import GATES, ProblemSize
from pytest_ecornn.implementations._common.sizes import ceil_div, is_array, maximum, minimum, where
from pytest_ecornn.implementations._cuda.launch import Launch

WARPS = 8
THREADS = 32 * WARPS
TILE = 8  # sequences
FRAGMENT_REGISTERS, FRAGMENT_BYTES = 8, 8 * 4 * THREADS  # of a thread, of a block: a warp's 16 rows by 64 bytes of columns
PACKETS_IN_FLIGHT = 8  # packets in flight of a thread; twice as many of a load warp's thread
K_TILE_BYTES = 64  # of a K tile: columns that are multiplied at once
L2_KEPT_BYTES = 32 * 10**6  # of all blocks' weights, which the L2 cache has from one step to the next, of a longer stream too
_MOST_WIDE = 16  # bytes that are read at once
REGISTERS = 65_536  # of a multiprocessor
_MAX_REG_FRAGMENTS = 22  # of 255 registers
_NON_WEIGHT_REGISTERS = 48  # of a thread that multiplies, beside weights
_BEST_HELD_SPLIT = 10  # fragments that are best in registers, of one tile's product in a grid with split float32, forward
_LOAD_REGISTERS = {128: 104, 256: 72}  # of a load warp's thread, by the number of such threads

# Names end in units: _clocks are of a multiprocessor, of mma and splitting of one of its four sub-partitions.
US_PER_CLOCK = 1 / 1700
MMA_CLOCKS = 6.1  # an mma, of 16 rows, 8 columns and 32 bytes of K
_DEPENDENT_MMA_CLOCKS = 24  # from an mma to the next one of its chain
SPLIT_FRAGMENT_CLOCKS, SPLIT_K_TILE_CLOCKS = 75, 28  # for 3xTF32: a warp's fragment of weights, a K tile's columns
SMEM_BYTES_PER_CLOCK, L2_BYTES_PER_CLOCK = 128, 36
_ALL_L2_BYTES_PER_US, _MEMORY_BYTES_PER_US = 4.8e6, 3.0e6  # that all multiprocessors read together
# A tile's product.
_ISSUE_LOSS = 1.5  # the factor that warps lose beside mma and reads of shared memory
_ONE_TILE_READ_LOSS = 1.1  # the same of reads, of one tile forward in a grid
_UNSPILLED_M_TILES, _SPILLED_M_TILE_CLOCKS = 4, 200  # of split float32, whose sums have registers forward; each further one
# A step in a cluster, beside its product.
_STATE_US = 0.22  # a thread's state
_K_PARTITION_US = 0.045  # each K partition's sums
_EXCHANGE_US = 0.1  # until published states arrive
_BLOCK_US, _LINE_US, _LINE_BYTES = 0.006, 0.0055, 128  # each block that publishes, and each line that it publishes
_MULTI_TILE_SLOWDOWN = 1.2  # the factor by which tiles that take turns delay each other forward
_SPLIT_MULTI_TILE_US, _SPLIT_MULTI_TILE_HIDDEN = 0.2, 128  # each then, of split float32 with gates up to that H, on an H100
_BACKWARD_TILE_US, _BACKWARD_PRODUCT_FACTOR = 0.6, 1.4  # of several tiles each, and its product unless float32 is split
# A tile's step forward in a grid without load warps.
_GRID_TILE_US, _GRID_PRODUCT_FACTOR = 0.35, 0.89
_GRID_STATE_US = 0.71  # a thread's state
_PACKET_US, _STRADDLING_PACKET_US = 0.075, 0.087  # that a thread reads; in addition, with values of two sequences
_ROUND_US = 1.2  # each round beyond a thread's first packets in flight
_M_TILE_SUMS_US, _FREE_M_TILES = 0.055, 3  # a warp's sums of an M tile, beyond the first
# The same with load warps, by the number of their threads and the bytes of an element: of one tile the tile, the factor of its
# product, a packet, in addition one with values of two sequences, and the sums of an M tile. Of several tiles the first three.
_LOAD_WARP_ONE_TILE = {
    (128, 2): (0.82, 0.85, 0.022, 0.014, 0.1),
    (256, 2): (0.8, 0.76, 0.07, 0.037, 0.045),
    (256, 4): (1.13, 0.6, 0.146, 0.054, 0.023),
}
_LOAD_WARP_TILES = (0.74, 1.16, 0.035)
_LOAD_WARP_STATE_US, _LOAD_WARP_ROUND_US = 0.4, 4.5  # a thread's state beyond the first; a round beyond a thread's first
# A step backward in a grid, and a tile of it.
_BACKWARD_STEP_US, _BACKWARD_GRID_TILE_US, _BACKWARD_GRID_PRODUCT_FACTOR = 0.61, 1.08, 0.73
_GRADIENT_PACKET_US, _SUM_PACKET_US = 0.18, 0.25  # that a thread reads
_STRADDLING_US = 0.25  # a tile, where packed packets have values of two sequences
# Streamed weights: nothing else is read for so long, while states are exchanged, and in that share of a product's time.
_UNREAD_US, _HIDDEN_PRODUCT = 2.0, 0.4


@dataclass(frozen=True)
class Form:
    """A tiling, the resources that it needs, its launch and the macros with which its kernel is compiled.

    `blocks` of a cluster own `units` each; it has `tiles` of `tile_batch` sequences, 8. With `is_grid` the clusters are groups.

    k_partitions: groups of warps, one for each K partition of a product. Of a warp's fragments of W_hh `reg_fragments`
    are in registers and `smem_fragments` in shared memory. The rest is streamed: `stream_stages` stages of `stage_fragments`
    are in flight. grid_rows: blocks in each column of a group, backward in a grid. buffers: of states, forward in a
    grid. load_threads: threads of the load warps, which load published states into them; with 0 the threads that multiply load
    too. reallocates_registers: from the load warps to the others. n_tiles: tiles of 8 sequences that are multiplied as one, in
    a grid.
    """

    problem: ProblemSize
    units: int
    blocks: int
    tiles: int
    k_partitions: int
    reg_fragments: int = 0
    smem_fragments: int = 0
    stream_stages: int = 0
    is_grid: bool = False
    grid_rows: int = 1
    buffers: int = 0
    load_threads: int = 0
    reallocates_registers: bool = False
    n_tiles: int = 1

    def with_weights(self, reg_fragments: int, smem_fragments: int, stream_stages: int) -> Self:
        """The form with its weights there. What they were placed by is not computed again."""
        placed = object.__new__(type(self))
        weights = {"reg_fragments": reg_fragments, "smem_fragments": smem_fragments, "stream_stages": stream_stages}
        vars(placed).update(vars(self) | weights)
        return placed

    # How a product is divided.

    @property
    def is_2d_grid(self) -> bool:
        """Whether the blocks of a group form rows and columns."""
        return self.is_grid and self.problem.is_backward

    @property
    def cluster_blocks(self) -> int:
        """Blocks of a cluster at launch, 1 for no clusters."""
        return 1 if self.is_grid else self.blocks

    @cached_property
    def grid_cols(self) -> int:
        """Blocks in each row of a group."""
        return self.blocks // self.grid_rows

    @cached_property
    def clusters(self) -> int:
        return ceil_div(self.problem.batch, self.tile_batch * self.tiles)

    @property
    def tile_batch(self) -> int:
        """Sequences of a tile."""
        return TILE

    @property
    def total_clusters(self) -> int:
        """Clusters of all layers that are launched at once."""
        return self.clusters

    @property
    def _gates(self) -> int:
        return GATES[self.problem.cell]

    @cached_property
    def k_tiles_per_warp(self) -> int:
        """K tiles of a group of warps: of all units; backward of the gates of the block, in a grid of its column."""
        own = self._gates * self.units * self.grid_rows if self.problem.is_backward else self.units * self.blocks
        return ceil_div(own * self.problem.arithmetic.bytes, K_TILE_BYTES * self.k_partitions)

    @cached_property
    def m_tiles_per_warp(self) -> int:
        """M tiles (16 rows) of a warp: of the block's own gates; backward of all units, in a grid of those of its row."""
        rows = self.units * self.grid_cols if self.problem.is_backward else self._gates * self.units
        return ceil_div(rows * self.k_partitions, 16 * WARPS)

    @property
    def all_slices(self) -> int:
        """`k_tiles_per_warp`, and the K tiles of other weights that a group of warps multiplies in a step."""
        return self.k_tiles_per_warp

    @cached_property
    def fragments(self) -> int:
        """Fragments of weights that a warp multiplies, however they are stored."""
        return self.m_tiles_per_warp * self.all_slices

    @property
    def fragments_per_warp(self) -> int:
        """Fragments of weights that a warp stores."""
        return self.fragments

    @cached_property
    def m_tiles_per_pass(self) -> int:
        """M tiles that are multiplied by the same K tile at once: backward some, so that their sums are sent meanwhile."""
        if not self.problem.is_backward or self.is_grid:
            return self.m_tiles_per_warp
        per_pass = 1
        for divisor in (2, 3, 4):
            per_pass = where((self.m_tiles_per_warp % divisor == 0) & (self.m_tiles_per_warp > divisor), divisor, per_pass)
        return per_pass

    @property
    def stage_fragments(self) -> int:
        """Fragments of a warp that are streamed at once: in a cluster a pass."""
        return 1 if self.is_grid else self.m_tiles_per_pass

    @property
    def products_per_step(self) -> int:
        """Products of all of a block's weights with the tiles of a step."""
        return ceil_div(self.tiles, self.n_tiles) if self.is_2d_grid else self.tiles

    @cached_property
    def streamed_fragments(self) -> int:
        return self.fragments_per_warp - self.reg_fragments - self.smem_fragments

    @property
    def l2_fragments(self) -> int:
        """Fragments that the L2 cache keeps of those that are streamed: all, or of a longer stream as many as surely fit."""
        if not self.is_grid:
            return self.streamed_fragments
        is_all = self.stream_bytes <= L2_KEPT_BYTES
        return where(is_all, self.streamed_fragments, L2_KEPT_BYTES // (FRAGMENT_BYTES * self.blocks))

    @property
    def stream_bytes(self) -> int:
        """Bytes of memory for the fragments that are streamed: clusters, or groups, share them."""
        return self.streamed_fragments * FRAGMENT_BYTES * self.blocks

    @cached_property
    def states_per_thread(self) -> int:
        """States of a thread in a tile."""
        return ceil_div(self.units * TILE, self.pointwise_threads)

    @property
    def _has_pointwise_warps(self) -> bool:
        """Whether the states are computed by warps that do not multiply, the pointwise warps."""
        return not self.problem.is_backward and not self.is_grid

    @cached_property
    def pointwise_threads(self) -> int:
        """Threads that compute the states. Pointwise warps have more of them where weights leave them the registers."""
        if not self._has_pointwise_warps:
            return THREADS
        return where(self.units * TILE <= 256, 256, 128) if self.problem.arithmetic.bytes == 2 else 128

    # What blocks exchange.

    @property
    def exchanged_bytes(self) -> int:
        """Bytes that a block publishes to each other block, of a tile in a step: states, backward sums in float32."""
        return self.units * TILE * (4 if self.problem.is_backward else self.problem.arithmetic.bytes)

    @property
    def sequences(self) -> int:
        """Sequences of a tile that a grid's blocks publish: a power of 2, so that there are few kernels."""
        return min(TILE, 1 << (self.problem.batch - 1).bit_length())

    def _parcels(self, values: int, value_bytes: int) -> int:
        """Packets of `values` of each sequence of a tile. 12 of a packet's 16 bytes are values, of TF32 6 values."""
        return ceil_div(self.sequences * value_bytes * values, 12)

    @cached_property
    def packets(self) -> tuple[int, int]:
        """Packets that a grid's block reads, of a tile and step: of states, backward its column's gradients; its row's sums."""
        size = self.problem.arithmetic.exchanged_bytes
        if not self.is_2d_grid:
            return self.blocks * self._parcels(self.units, size), 0
        return self.grid_rows * self._parcels(self._gates * self.units, size), self.grid_cols * self._parcels(self.units, 4)

    @property
    def received_bytes(self) -> int:
        """Bytes that a block receives of a tile in a step, without the packets' epochs."""
        return 12 * sum(self.packets) if self.is_grid else self.exchanged_bytes * self.blocks

    @property
    def mailbox_bytes(self) -> int:
        """Bytes of memory for the packets of all blocks of a grid."""
        values, sums = self.packets
        return (
            2 * self.clusters * self.tiles * 16 * (values * self.grid_cols + sums * self.blocks if self.is_2d_grid else values)
        )

    # Registers and shared memory.

    @property
    def width(self) -> int:
        """Bytes of weights that are read at once: forward as many as divide a row, backward an element."""
        size = self.problem.arithmetic.bytes
        return size if self.problem.is_backward else gcd(self.problem.hidden * size, _MOST_WIDE)

    @property
    def pointwise_registers(self) -> int:
        """Registers of a thread of the pointwise warps."""
        return where(self.states_per_thread == 1, 72, where(self.states_per_thread == 2, 96, 120))

    @property
    def load_registers(self) -> int:
        """Registers of a thread of the load warps."""
        return _LOAD_REGISTERS.get(self.load_threads, 0)

    @property
    def _non_mma_threads(self) -> int:
        """Threads that do not multiply."""
        return self.pointwise_threads if self._has_pointwise_warps else self.load_threads

    @property
    def _registers_beside(self) -> int:
        """Registers of all threads that do not multiply."""
        return self._non_mma_threads * (self.pointwise_registers if self._has_pointwise_warps else self.load_registers)

    @property
    def launch_registers(self) -> int:
        """Registers of each thread at launch."""
        return REGISTERS // (THREADS + self._non_mma_threads) // 8 * 8

    @cached_property
    def mma_warp_registers(self) -> int:
        """Registers of a thread that multiplies, after the others have released theirs; 0 where none are reallocated."""
        if self.is_grid and not (self.load_threads and self.reallocates_registers):
            return 0
        return (self.launch_registers * (THREADS + self._non_mma_threads) - self._registers_beside) // THREADS // 8 * 8

    @property
    def extra_registers(self) -> int:
        """Registers that a thread that multiplies needs in addition, forward in a cluster."""
        return 0

    @cached_property
    def max_reg_fragments(self) -> int:
        """Fragments that a thread has registers for, measured by compiling without spills."""
        is_3xtf32, is_backward = self.problem.arithmetic.is_3xtf32, self.problem.is_backward
        if is_backward and not self.is_grid:
            of_states = (2 if self._gates == 1 else 4) * minimum(self.states_per_thread - 1, 2)
            return _MAX_REG_FRAGMENTS - of_states - (self.m_tiles_per_pass - 2) - 6 * is_3xtf32
        if not self.is_grid:
            others = _NON_WEIGHT_REGISTERS + 6 * (self.m_tiles_per_warp - 1) + 32 * is_3xtf32 + self.extra_registers
            return (self.mma_warp_registers - others) // FRAGMENT_REGISTERS
        others = 8 * self.m_tiles_per_warp + 16 if is_3xtf32 else 6 * self.m_tiles_per_warp + 10
        if is_backward:
            of_n_tile = 4 * self.m_tiles_per_warp + (12 if is_3xtf32 else 6)
            others = others + 16 * (self.states_per_thread - 1) + of_n_tile * (self.n_tiles - 1)
        else:
            others = others + FRAGMENT_REGISTERS * ((self.m_tiles_per_warp > 4) & (self.tiles > 1))
        if self.load_threads:
            room = self.mma_warp_registers or self.launch_registers - 8
            return (room - _NON_WEIGHT_REGISTERS - others - 32 * is_3xtf32) // FRAGMENT_REGISTERS
        return _MAX_REG_FRAGMENTS - ceil_div(others, FRAGMENT_REGISTERS)

    @property
    def preferred_reg_fragments(self) -> int:
        """Fragments best in registers if shared memory has room for the others. In a forward grid splitting needs registers."""
        is_fewer = self.is_grid and self.problem.arithmetic.is_3xtf32 and not self.problem.is_backward
        return minimum(self.max_reg_fragments, _BEST_HELD_SPLIT) if is_fewer else self.max_reg_fragments

    @property
    def allowed_spilled_fragments(self) -> int:
        """Fragments that a thread may hold beyond `max_reg_fragments`, where then none are streamed."""
        return int(self.load_threads > 0)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block, as the kernels' SharedStorage has them."""
        slots = self.smem_fragments + self.stream_stages * self.stage_fragments
        return self.non_weight_smem_bytes + FRAGMENT_BYTES * max(1, slots)

    @cached_property
    def non_weight_smem_bytes(self) -> int:
        """Bytes of `shared_bytes` that are not weights."""
        carried = 4 * self.tiles * (self.states_per_thread * self.pointwise_threads + TILE)  # and where sequences end
        state_bytes = TILE * K_TILE_BYTES * (self.k_tiles_per_warp * self.k_partitions)
        if self.problem.is_backward:
            carried = carried + 4 * THREADS * (self.tiles * self.states_per_thread)
            return (self._shared_in_rows(state_bytes) if self.is_grid else self._shared_in_cluster) + carried
        if self.is_grid:
            own = maximum(1, self.buffers) * state_bytes + self.exchanged_bytes + 48
        else:
            own = 2 * self.tiles * state_bytes + (128 + 16)
        units = 16 * WARPS * self.m_tiles_per_warp // self.k_partitions // self._gates + 1
        sum_bytes = self._sums_bytes(units, TILE) * (2 if self._has_pointwise_warps else 1)
        return own + sum_bytes + 16 * self.units + carried

    def _sums_bytes(self, units: int, sequences: int) -> int:
        """Bytes of a tile's sums, forward, with room for `units` and `sequences`."""
        return 4 * (4 + sequences * (1 if self._gates == 1 else 4)) * self.k_partitions * units

    @property
    def _shared_in_cluster(self) -> int:
        """Bytes of shared memory backward in a cluster: barriers, sums, and the block's own gradients."""
        return 128 + 2 * self.tiles * (self.exchanged_bytes * self.blocks) + 2 * TILE * K_TILE_BYTES * self.k_tiles_per_warp

    def _shared_in_rows(self, states: int) -> int:
        """Bytes of shared memory backward in a grid: the product's columns, own gradients, own sums and received sums."""
        own = self._gates * TILE * self.problem.arithmetic.bytes * self.units + 32
        sum_bytes = 4 * TILE * 16 * WARPS * self.m_tiles_per_warp + 4 * TILE * 4 * self.k_partitions
        return states * self.n_tiles + own + sum_bytes + 12 * self.packets[1] + 16

    # The kernel.

    @property
    def kind(self) -> str:
        """The kernel and how its threads share the work, in words."""
        readers = f", {self.load_threads} readers" if self.load_threads else ""
        return f"grid{readers}" if self.is_grid else "clusters"

    @cached_property
    def launch(self) -> Launch:
        return Launch(self.total_clusters * self.blocks, THREADS + self._non_mma_threads, self.shared_bytes)

    @property
    def macros(self) -> dict[str, int]:
        macros = {
            "UNITS": self.units,
            "TILES": self.tiles,
            "K_PARTITIONS": self.k_partitions,
            "M_TILES_PER_PASS": self.m_tiles_per_pass,
            "REG_FRAGMENTS": self.reg_fragments,
            "SMEM_FRAGMENTS": self.smem_fragments,
            "STREAM_STAGES": self.stream_stages,
            "STAGE_FRAGMENTS": self.stage_fragments,
            "L2_FRAGMENTS": self.l2_fragments,
        }
        if self.is_grid:
            macros["SEQUENCES"] = self.sequences
        if self.is_2d_grid:
            macros |= {"GRID_ROWS": self.grid_rows, "GRID_COLS": self.grid_cols, "N_TILES": self.n_tiles}
        else:
            macros["BLOCKS"] = self.blocks
        if self._has_pointwise_warps:
            macros |= {"POINTWISE_THREADS": self.pointwise_threads, "POINTWISE_REGISTERS": self.pointwise_registers}
        elif not self.problem.is_backward:
            macros |= {"BUFFERS": self.buffers, "LOAD_THREADS": self.load_threads, "LOAD_REGISTERS": self.load_registers}
        if not self.problem.is_backward:
            macros["MMA_REGISTERS"] = self.mma_warp_registers
        return macros | {"SHARED_BYTES": self.shared_bytes, "USE_3XTF32": int(self.problem.arithmetic.is_3xtf32)}

    def __str__(self) -> str:
        near = [f"{self.reg_fragments} in registers"] + [f"{self.smem_fragments} in shared memory"] * (self.smem_fragments > 0)
        where = ", ".join(near + [f"{self.streamed_fragments} in the L2 cache"] * (self.streamed_fragments > 0))
        what = "groups over the grid" if self.is_grid else "clusters"
        blocks = f"{self.grid_rows} x {self.grid_cols}" if self.is_2d_grid else str(self.blocks)
        return (
            f"{what}: {self.clusters} of {blocks} blocks, {self.tile_batch * self.tiles} sequences each, {self.units} units a "
            f"block; parts of the weights: {where}"
        )

    # Estimated times.

    @cached_property
    def product_us(self) -> float:
        """Estimated us of a tile's product."""
        arithmetic, is_forward, fragments = self.problem.arithmetic, not self.problem.is_backward, self.fragments_per_warp
        each = arithmetic.products
        mma_clocks = maximum(2 * each * fragments * MMA_CLOCKS, each * _DEPENDENT_MMA_CLOCKS * self.all_slices)
        reads = WARPS * fragments // self.m_tiles_per_pass * (TILE * K_TILE_BYTES)
        reads = reads + FRAGMENT_BYTES * (fragments - self.reg_fragments)
        loss = where(self.tiles == 1, _ONE_TILE_READ_LOSS, _ISSUE_LOSS) if self.is_grid and is_forward else _ISSUE_LOSS
        clocks = maximum(_ISSUE_LOSS * mma_clocks, loss * reads / SMEM_BYTES_PER_CLOCK)
        if arithmetic.is_3xtf32:
            clocks = maximum(clocks, 2.0 * (fragments * SPLIT_FRAGMENT_CLOCKS + self.all_slices * SPLIT_K_TILE_CLOCKS))
        if not self.is_grid:
            clocks = maximum(clocks, self.streamed_fragments * FRAGMENT_BYTES / L2_BYTES_PER_CLOCK)
        if arithmetic.is_3xtf32 and is_forward:
            clocks = clocks + maximum(0, self.m_tiles_per_warp - _UNSPILLED_M_TILES) * _SPILLED_M_TILE_CLOCKS
        return clocks * US_PER_CLOCK

    @cached_property
    def step_us(self) -> float:
        """Estimated us of a step of all tiles, by which forms are compared."""
        if not self.is_grid:
            return self._cluster_us
        if self.problem.is_backward:
            resident_us = self._grid_backward_us
        else:
            resident_us = self._load_warp_grid_us if self.load_threads else self._grid_us
        return resident_us + self._stream_wait_us

    @property
    def _publishing_us(self) -> float:
        """Estimated us for a cluster's block to publish a tile."""
        return self.blocks * (_BLOCK_US + _LINE_US * self.exchanged_bytes / _LINE_BYTES)

    def _one_tile_us(self, states_us: float) -> float:
        """Estimated us between a tile's steps, in a cluster. states_us: to compute its states once all sums are there."""
        return self.product_us + states_us + self._publishing_us + _EXCHANGE_US

    @property
    def _cluster_us(self) -> float:
        """Estimated us of a step in a cluster: from one step of a tile to the next, or of all tiles one after the other."""
        is_3xtf32, state_us = self.problem.arithmetic.is_3xtf32, _STATE_US * self.states_per_thread
        one_tile_us = self._one_tile_us(state_us + _K_PARTITION_US * self.k_partitions)
        if self.problem.is_backward:
            factor = 1.0 if is_3xtf32 else _BACKWARD_PRODUCT_FACTOR
            return where(self.tiles == 1, one_tile_us, self.tiles * (_BACKWARD_TILE_US + factor * self.product_us))
        if is_3xtf32 and self._gates > 1 and self.problem.hidden <= _SPLIT_MULTI_TILE_HIDDEN:
            state_us = state_us + _SPLIT_MULTI_TILE_US
        several_tiles_us = _MULTI_TILE_SLOWDOWN * self.tiles * maximum(self.product_us, state_us + self._publishing_us)
        return where(self.tiles == 1, one_tile_us, maximum(several_tiles_us, one_tile_us))

    @property
    def _grid_us(self) -> float:
        """Estimated us of a step forward in a grid without load warps."""
        packet = _PACKET_US + _STRADDLING_PACKET_US * self._packets_straddle
        each = ceil_div(self.packets[0], THREADS)
        reads = packet * self._unpacking_factor * each + _ROUND_US * (ceil_div(each, PACKETS_IN_FLIGHT) - 1)
        state_us = _GRID_STATE_US * self.states_per_thread + _M_TILE_SUMS_US * maximum(0, self.m_tiles_per_warp - _FREE_M_TILES)
        return self.tiles * (_GRID_TILE_US + state_us + _GRID_PRODUCT_FACTOR * self.product_us + reads)

    @property
    def _load_warp_grid_us(self) -> float:
        """Estimated us of a step forward in a grid with load warps."""
        each = ceil_div(self.packets[0], self.load_threads)
        rounds_us = _LOAD_WARP_ROUND_US * (ceil_div(each, 2 * PACKETS_IN_FLIGHT) - 1)
        more_states_us = _LOAD_WARP_STATE_US * (self.states_per_thread - 1)

        def tile(
            tile_us: float, product: float, packet_us: float, straddling_us: float = 0, m_tile_sums_us: float = 0
        ) -> float:
            reads = (packet_us + straddling_us * self._packets_straddle) * each + rounds_us
            return tile_us + product * self.product_us + reads + (m_tile_sums_us * self.m_tiles_per_warp + more_states_us)

        one_tile = _LOAD_WARP_ONE_TILE.get((self.load_threads, self.problem.arithmetic.bytes), _LOAD_WARP_TILES)
        return self.tiles * where(self.tiles == 1, tile(*one_tile), tile(*_LOAD_WARP_TILES))

    @property
    def _grid_backward_us(self) -> float:
        """Estimated us of a step backward in a grid."""
        gradients, sums = (ceil_div(packets, THREADS) for packets in self.packets)
        reads = _GRADIENT_PACKET_US * self._unpacking_factor * gradients + _SUM_PACKET_US * sums
        reads = reads + (_STRADDLING_US * self._packets_straddle if self._unpacking_factor > 1 else 0.0)
        product_us = _BACKWARD_GRID_PRODUCT_FACTOR * self.product_us
        return _BACKWARD_STEP_US + self.tiles * (_BACKWARD_GRID_TILE_US + product_us + reads)

    @property
    def _stream_wait_us(self) -> float:
        """Estimated us of a step in which a grid's tiles wait for weights that are streamed."""
        if not np.any(self.stream_stages):
            return 0.0
        near = self.l2_fragments * (FRAGMENT_BYTES * self.blocks)
        stream_us = near / _ALL_L2_BYTES_PER_US + (self.stream_bytes - near) / _MEMORY_BYTES_PER_US
        stages = self.stream_stages * self.stage_fragments * (FRAGMENT_BYTES * self.blocks)
        hidden_us = minimum(stages / _ALL_L2_BYTES_PER_US, _UNREAD_US)
        hidden_us = hidden_us + _HIDDEN_PRODUCT * self.product_us * self.tiles / self.products_per_step
        return self.products_per_step * maximum(0.0, stream_us - hidden_us)

    @property
    def _unpacking_factor(self) -> int:
        """Words that a packet's word becomes once unpacked: 2 of TF32, which is packed."""
        return self.problem.arithmetic.bytes // self.problem.arithmetic.exchanged_bytes

    @property
    def _packets_straddle(self) -> bool:
        """Whether a packet may hold two sequences' values, which takes longer where it is not all float32."""
        values = self._gates * self.units if self.is_2d_grid else self.units
        words = values * self.problem.arithmetic.bytes // 4
        return (words % (3 * self._unpacking_factor) > 0) & (not self.problem.arithmetic.is_3xtf32)


F = TypeVar("F", bound=Form)


@dataclass(frozen=True)
class Candidates(Generic[F]):
    """Many forms as one whose sizes are arrays. fits: which of them fit, an array of their shape."""

    forms: F
    fits: Any

    def at(self, number: int) -> F:
        """The form of that number, in the order of `fits`."""
        shape, sizes = self.fits.shape, {field.name: getattr(self.forms, field.name) for field in fields(self.forms)}
        place = np.unravel_index(number, shape)
        own = {name: np.broadcast_to(size, shape)[place].item() for name, size in sizes.items() if is_array(size)}
        return replace(self.forms, **own)

    def __iter__(self) -> Iterator[F]:
        """Yields the forms that fit, one by one."""
        return map(self.at, np.flatnonzero(self.fits).tolist())
