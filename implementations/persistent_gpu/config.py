"""The form in which persistent_gpu runs a layer: how it is spread over the chip, its launch and its macros."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, gcd

from pytest_ecornn.implementations._common.recurrent_problem import GATES, ProblemSize
from pytest_ecornn.implementations._cuda.launch import Launch

WARPS = 8
THREADS = 32 * WARPS
TILE = 8  # sequences
FRAGMENT_REGISTERS, FRAGMENT_BYTES = 8, 8 * 4 * THREADS  # of a thread, of a block: a warp's 16 rows by 64 bytes of columns
PACKETS_IN_FLIGHT = 8  # packets in flight of a thread; twice as many of a load warp's thread
K_TILE_BYTES = 64  # of a K tile: columns that are multiplied at once
L2_STREAM_BYTES = 32 * 10**6  # of all blocks' weights, which the L2 cache has from one step to the next
L2_KEPT_BYTES = 32 * 10**6  # that it is told to keep of a longer stream
_MOST_WIDE = 16  # bytes that are read at once
_REGISTERS = 65_536  # of a multiprocessor
_MAX_REG_FRAGMENTS = 22  # of 255 registers
_NON_WEIGHT_REGISTERS = 48  # of a thread that multiplies, beside weights
_BEST_HELD_SPLIT = 10  # fragments that are best in registers, of one tile's product in a grid with split float32, forward
_LOAD_REGISTERS = {128: 104, 256: 72}  # of a load warp's thread, by the number of such threads


@dataclass(frozen=True)
class Form:
    """A tiling, the resources that it needs, its launch and the macros with which its kernel is compiled.

    `blocks` of a cluster own `units` each; it has `tiles` of `wide` sequences, 8. With `is_grid` the clusters are groups.

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

    @property
    def pointwise_registers(self) -> int:
        """Registers of a thread of the pointwise warps."""
        return {1: 72, 2: 96}.get(self.states_per_thread, 120)

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
        return _REGISTERS // (THREADS + self._non_mma_threads) // 8 * 8

    @property
    def mma_warp_registers(self) -> int:
        """Registers of a thread that multiplies, after the others have released theirs; 0 where none are reallocated."""
        if self.is_grid and not (self.buffers and self.reallocates_registers):
            return 0
        return (self.launch_registers * (THREADS + self._non_mma_threads) - self._registers_beside) // THREADS // 8 * 8

    @property
    def extra_registers(self) -> int:
        """Registers that a thread that multiplies needs in addition, forward in a cluster."""
        return 0

    @property
    def max_reg_fragments(self) -> int:
        """Fragments that a thread has registers for, measured by compiling without spills."""
        is_3xtf32 = self.problem.arithmetic.is_3xtf32
        if self.problem.is_backward and not self.is_grid:
            of_states = (2 if self._gates == 1 else 4) * min(self.states_per_thread - 1, 2)
            return _MAX_REG_FRAGMENTS - of_states - (self.m_tiles_per_pass - 2) - 6 * is_3xtf32
        if self.is_grid:
            others = 8 * self.m_tiles_per_warp + 16 if is_3xtf32 else 6 * self.m_tiles_per_warp + 10
            others += 16 * (self.states_per_thread - 1) * self.problem.is_backward
            others += (4 * self.m_tiles_per_warp + (12 if is_3xtf32 else 6)) * (self.n_tiles - 1)
            others += FRAGMENT_REGISTERS * (self.m_tiles_per_warp > 4 and self.tiles > 1 and not self.problem.is_backward)
            if self.buffers:
                room = self.mma_warp_registers or self.launch_registers - 8
                return (room - _NON_WEIGHT_REGISTERS - others - 32 * is_3xtf32) // FRAGMENT_REGISTERS
            return _MAX_REG_FRAGMENTS - ceil(others / FRAGMENT_REGISTERS)
        others = _NON_WEIGHT_REGISTERS + 6 * (self.m_tiles_per_warp - 1) + 32 * is_3xtf32 + self.extra_registers
        return (self.mma_warp_registers - others) // FRAGMENT_REGISTERS

    @property
    def preferred_reg_fragments(self) -> int:
        """Fragments best in registers if shared memory has room for the others. In a forward grid splitting needs registers."""
        is_fewer = self.is_grid and self.problem.arithmetic.is_3xtf32 and not self.problem.is_backward
        return min(self.max_reg_fragments, _BEST_HELD_SPLIT) if is_fewer else self.max_reg_fragments

    @property
    def allowed_spilled_fragments(self) -> int:
        """Fragments that a thread may hold beyond `max_reg_fragments`, where then none are streamed."""
        return int(self.buffers > 0)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block, as the kernels' SharedStorage has them."""
        slots = self.smem_fragments + self.stream_stages * self.stage_fragments
        return self.non_weight_smem_bytes + FRAGMENT_BYTES * max(1, slots)

    @property
    def non_weight_smem_bytes(self) -> int:
        """Bytes of `shared_bytes` that are not weights."""
        carried = 4 * self.tiles * (self.states_per_thread * self.pointwise_threads + TILE)  # and where sequences end
        state_bytes = self.k_tiles_per_warp * self.k_partitions * TILE * K_TILE_BYTES
        if self.problem.is_backward:
            carried += 4 * self.tiles * self.states_per_thread * THREADS
            return (self._shared_in_rows(state_bytes) if self.is_grid else self._shared_in_cluster) + carried
        own = (
            max(1, self.buffers) * state_bytes + self.exchanged_bytes + 48
            if self.is_grid
            else 128 + 2 * self.tiles * state_bytes + 16
        )
        units = self.m_tiles_per_warp * 16 * WARPS // self.k_partitions // self._gates + 1
        sum_bytes = self._sums_bytes(units, TILE) * (2 if self._has_pointwise_warps else 1)
        return own + sum_bytes + 16 * self.units + carried

    def _sums_bytes(self, units: int, sequences: int) -> int:
        """Bytes of a tile's sums, forward, with room for `units` and `sequences`."""
        return 4 * self.k_partitions * units * (4 + sequences * (1 if self._gates == 1 else 4))

    @property
    def _shared_in_cluster(self) -> int:
        """Bytes of shared memory backward in a cluster: barriers, sums, and the block's own gradients."""
        return 128 + 2 * self.tiles * self.exchanged_bytes * self.blocks + 2 * self.k_tiles_per_warp * TILE * K_TILE_BYTES

    def _shared_in_rows(self, states: int) -> int:
        """Bytes of shared memory backward in a grid: the product's columns, own gradients, own sums and received sums."""
        own = self._gates * self.units * TILE * self.problem.arithmetic.bytes + 32
        sum_bytes = 4 * TILE * (self.m_tiles_per_warp * 16 * WARPS + 4 * self.k_partitions)
        return states * self.n_tiles + own + sum_bytes + 12 * self.packets[1] + 16

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
        found = {
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
            found["SEQUENCES"] = self.sequences
        if self.is_2d_grid:
            found |= {"GRID_ROWS": self.grid_rows, "GRID_COLS": self.grid_cols, "N_TILES": self.n_tiles}
        else:
            found["BLOCKS"] = self.blocks
        if self._has_pointwise_warps:
            found |= {"POINTWISE_THREADS": self.pointwise_threads, "POINTWISE_REGISTERS": self.pointwise_registers}
        elif not self.problem.is_backward:
            found |= {"BUFFERS": self.buffers, "LOAD_THREADS": self.load_threads, "LOAD_REGISTERS": self.load_registers}
        if not self.problem.is_backward:
            found["MMA_REGISTERS"] = self.mma_warp_registers
        return found | {"SHARED_BYTES": self.shared_bytes, "USE_3XTF32": int(self.problem.arithmetic.is_3xtf32)}

    def __str__(self) -> str:
        near = [f"{self.reg_fragments} in registers"] + [f"{self.smem_fragments} in shared memory"] * (self.smem_fragments > 0)
        where = ", ".join(near + [f"{self.streamed_fragments} in the L2 cache"] * (self.streamed_fragments > 0))
        what = "groups over the grid" if self.is_grid else "clusters"
        blocks = f"{self.grid_rows} x {self.grid_cols}" if self.is_2d_grid else str(self.blocks)
        return (
            f"{what}: {self.clusters} of {blocks} blocks, {self.wide * self.tiles} sequences each, {self.units} units a "
            f"block; parts of the weights: {where}"
        )
