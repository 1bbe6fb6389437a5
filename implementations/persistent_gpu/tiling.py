"""How persistent_gpu spreads a layer over the chip: a function of the cell, the sizes, the precision, the pass and the device.

A cluster of blocks runs all steps of some sequences, in tiles of 8. While the blocks publish one tile's states, they compute
another tile. Each block owns some hidden units. It holds their rows of W_hh in registers, then in shared memory; the rest is
loaded from the L2 cache in every step. Clusters are independent: where there are more than run at once, they queue.

A layer that does not fit in a cluster, or that is faster so, runs in a grid. Its groups have more blocks, which publish
through the L2 cache and all run at once. Forward several tiles are multiplied as one where that is faster (config_ntiled.py).
Backward the blocks of a group form rows and columns: a block multiplies what its column publishes, and publishes the sums to
its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd

from pytest_ecornn.implementations._common.recurrent_problem import GATES, ProblemSize

WARPS = 8
THREADS = 32 * WARPS
TILE = 8  # sequences
FRAGMENT_REGISTERS, FRAGMENT_BYTES = 8, 8 * 4 * THREADS  # of a thread, of a block: a warp's 16 rows by 64 bytes of columns
PACKETS_IN_FLIGHT = 8  # packets in flight of a thread; twice as many of a load warp's thread
K_TILE_BYTES = 64  # of a K tile: columns that are multiplied at once
L2_STREAM_BYTES = 32 * 10**6  # of all blocks' weights, which the L2 cache has from one step to the next
L2_KEPT_BYTES = 32 * 10**6  # that it is told to keep of a longer stream
_MOST_WIDE = 16  # bytes that are read at once


@dataclass(frozen=True)
class Tiling:
    """`blocks` of a cluster own `units` each; it has `tiles` of `wide` sequences, 8. With `is_grid` the clusters are groups.

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

    @property
    def is_2d_grid(self) -> bool:
        """Whether the blocks of a group form rows and columns."""
        return self.is_grid and self.problem.is_backward

    @property
    def cluster_blocks(self) -> int:
        """Blocks of a cluster at launch, 1 for no clusters."""
        return 1 if self.is_grid else self.blocks

    @property
    def grid_cols(self) -> int:
        """Blocks in each row of a group."""
        return self.blocks // self.grid_rows

    @property
    def clusters(self) -> int:
        return ceil(self.problem.batch / (self.wide * self.tiles))

    @property
    def wide(self) -> int:
        """Sequences of a tile."""
        return TILE

    @property
    def total_clusters(self) -> int:
        """Clusters of all layers that are launched at once."""
        return self.clusters

    @property
    def _gates(self) -> int:
        return GATES[self.problem.cell]

    @property
    def _slice(self) -> int:
        """Columns of a K tile."""
        return K_TILE_BYTES // self.problem.arithmetic.bytes

    @property
    def k_tiles_per_warp(self) -> int:
        """K tiles of a group of warps: of all units; backward of the gates of the block, in a grid of its column."""
        own = self._gates * self.units * self.grid_rows if self.problem.is_backward else self.units * self.blocks
        return ceil(own / (self._slice * self.k_partitions))

    @property
    def m_tiles_per_warp(self) -> int:
        """M tiles (16 rows) of a warp: of the block's own gates; backward of all units, in a grid of those of its row."""
        rows = self.units * self.grid_cols if self.problem.is_backward else self._gates * self.units
        return ceil(rows * self.k_partitions / (16 * WARPS))

    @property
    def all_slices(self) -> int:
        """`k_tiles_per_warp`, and the K tiles of other weights that a group of warps multiplies in a step."""
        return self.k_tiles_per_warp

    @property
    def fragments(self) -> int:
        """Fragments of weights that a warp multiplies, however they are stored."""
        return self.m_tiles_per_warp * self.all_slices

    @property
    def fragments_per_warp(self) -> int:
        """Fragments of weights that a warp stores."""
        return self.fragments

    @property
    def m_tiles_per_pass(self) -> int:
        """M tiles that are multiplied by the same K tile at once: backward some, so that their sums are sent meanwhile."""
        if not self.problem.is_backward or self.is_grid:
            return self.m_tiles_per_warp
        return max(
            some for some in (1, 2, 3, 4) if self.m_tiles_per_warp % some == 0 and some * 2 <= max(self.m_tiles_per_warp, 2)
        )

    @property
    def stage_fragments(self) -> int:
        """Fragments of a warp that are streamed at once: in a cluster a pass."""
        return 1 if self.is_grid else self.m_tiles_per_pass

    @property
    def products_per_step(self) -> int:
        """Products of all of a block's weights with the tiles of a step."""
        return ceil(self.tiles / self.n_tiles) if self.is_2d_grid else self.tiles

    @property
    def streamed_fragments(self) -> int:
        return self.fragments_per_warp - self.reg_fragments - self.smem_fragments

    @property
    def l2_fragments(self) -> int:
        """Fragments that the L2 cache keeps of those that are streamed: all, or of a longer stream as many as surely fit."""
        if not self.is_grid or self.stream_bytes <= L2_STREAM_BYTES:
            return self.streamed_fragments
        return L2_KEPT_BYTES // (FRAGMENT_BYTES * self.blocks)

    @property
    def stream_bytes(self) -> int:
        """Bytes of memory for the fragments that are streamed: clusters, or groups, share them."""
        return self.streamed_fragments * FRAGMENT_BYTES * self.blocks

    @property
    def states_per_thread(self) -> int:
        """States of a thread in a tile."""
        return ceil(self.units * TILE / self.pointwise_threads)

    @property
    def _has_pointwise_warps(self) -> bool:
        """Whether the states are computed by warps that do not multiply, the pointwise warps."""
        return not self.problem.is_backward and not self.is_grid

    @property
    def pointwise_threads(self) -> int:
        """Threads that compute the states. Pointwise warps have more of them where weights leave them the registers."""
        if not self._has_pointwise_warps:
            return THREADS
        return 256 if self.problem.arithmetic.bytes == 2 and self.units * TILE <= 256 else 128

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
        return ceil(self.sequences * values * value_bytes / 12)

    @property
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

    @property
    def width(self) -> int:
        """Bytes of weights that are read at once: forward as many as divide a row, backward an element."""
        size = self.problem.arithmetic.bytes
        return size if self.problem.is_backward else gcd(self.problem.hidden * size, _MOST_WIDE)
