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
from functools import cached_property
from math import ceil, gcd

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Problem
from pytest_ecornn.implementations._cuda.launch import Launch

WARPS = 8
_THREADS = 32 * WARPS
TILE = 8  # sequences
PART_REGISTERS, PART_BYTES = 8, 8 * 4 * _THREADS  # a fragment of a thread, of a block: 16 rows by 64 bytes of columns a warp
_REGISTERS = 65_536  # of a multiprocessor
_MOST_PARTS_HELD = 22  # of 255 registers
_OTHER_REGISTERS = 48  # of a thread that multiplies, beside weights
SLICE_BYTES = 64  # of a K tile: columns that are multiplied at once
_MOST_WIDE = 16  # bytes that are read at once
# Measured on an H200 (docs/notes/persistent_gpu.md). Clocks of a quarter of a multiprocessor: of a product, of a product that
# waits for the last, of splitting float32 for a fragment and for its K tile. Bytes a clock of shared memory and of the L2
# cache. The factor that warps lose beside these.
CLOCK_US = 1 / 1700
PRODUCT_CLOCKS, _CHAIN_CLOCKS, SPLIT_CLOCKS = 6.1, 24, (75, 28)
SHARED_BYTES_A_CLOCK, L2_BYTES_A_CLOCK, _LOSS = 128, 36, 1.5
_MOST_SUMS, _SPILLED_CLOCKS = (
    4,
    200,
)  # M tiles of float32 whose sums have registers forward; clocks of each further tile
# In us: of a thread's state; of each group's sums; until what is published arrives; of each block that publishes, and of each
# 128 bytes of that. The factor by which tiles that take turns delay each other. Backward: of each such tile; the factor of its
# product.
_GATES_US, _SUMS_US, _HANDOFF_US, _BLOCK_US, _TOLD_US, _SEVERAL = 0.22, 0.045, 0.1, 0.006, 0.0055, 1.2
_SEVERAL_US, _SEVERAL_PRODUCT = 0.6, 1.4
# In a grid, in us: of a tile; of a thread's state; of each packet that it reads; of one that two sequences share, in addition;
# of each round beyond the first 8 packets; of a warp's sums of 16 rows beyond three. The factor of a product.
# With load warps: of a tile, of the product (a factor), of their packets, of those that two sequences share (in addition), of
# 16 rows' sums: for several tiles, and for one tile by the number of load threads and the bytes of an element. Of a thread's
# state beyond the first; of each round beyond the first 16 packets.
# Backward: of a step; of a tile; in addition where two sequences share packed packets; of the product (a factor), of packets
# of gradients, of packets of sums.
_GRID_TILE_US, _GRID_STATE_US, _PARCEL_US, _SHARED_PARCEL_US, _ROUND_US = 0.35, 0.71, 0.075, 0.087, 1.2
_GRID_SUMS_US, _GRID_PRODUCT = 0.055, 0.89
PARCELS_AT_ONCE = 8  # packets in flight of a thread; twice as many of a load warp's thread
_READING_MORE = (0.74, 1.16, 0.035, 0.0, 0.0)
_READING_ONE = {
    (128, 2): (0.82, 0.85, 0.022, 0.014, 0.1),
    (256, 2): (0.8, 0.76, 0.07, 0.037, 0.045),
    (256, 4): (1.13, 0.6, 0.146, 0.054, 0.023),
}
# Of one tile's product in a grid, forward: the factor that warps lose in reading; with split float32 how many fragments are
# best in registers.
_GRID_LOSS, _BEST_HELD_SPLIT = 1.1, 10
_READING_STATE_US, _READING_ROUND_US = 0.4, 4.5
_BACKWARD_US, _BACKWARD_TILE_US, _BACKWARD_SHARED_US = 0.61, 1.08, 0.25
_BACKWARD_PRODUCT, _GRADIENTS_US, _PARTS_US = 0.73, 0.18, 0.25
_READER_REGISTERS = {128: 104, 256: 72}  # of a load warp's thread, by the number of such threads


@dataclass(frozen=True)
class Form:
    """`blocks` of a cluster own `units` each; it has `tiles` of `wide` sequences, 8. With `is_grid` the clusters are groups.

    groups: of warps: K partitions of a product. Of a warp's fragments of W_hh `held` are in registers and `shared` in shared
    memory. The rest is streamed: `ring` passes of `together` fragments are in flight. down: blocks in each column of a group,
    backward in a grid. buffers: of states, forward in a grid; `readers` more threads, the load warps, load what is published
    into them. 0: the threads that multiply load it too. moves_registers: from the load warps to the others.
    """

    problem: Problem
    units: int
    blocks: int
    tiles: int
    groups: int
    held: int = 0
    shared: int = 0
    ring: int = 0
    is_grid: bool = False
    down: int = 1
    buffers: int = 0
    readers: int = 0
    moves_registers: bool = False

    @property
    def is_in_rows(self) -> bool:
        """Whether the blocks of a group form rows and columns."""
        return self.is_grid and self.problem.is_backward

    @property
    def across(self) -> int:
        """Blocks in each row of a group."""
        return self.blocks // self.down

    @property
    def clusters(self) -> int:
        return ceil(self.problem.batch / (self.wide * self.tiles))

    @property
    def wide(self) -> int:
        """Sequences of a tile."""
        return TILE

    @property
    def clusters_of_all(self) -> int:
        """Clusters of all layers that are launched at once."""
        return self.clusters

    @property
    def _gates(self) -> int:
        return GATES[self.problem.cell]

    @property
    def _slice(self) -> int:
        """Columns of a K tile."""
        return SLICE_BYTES // self.problem.arithmetic.bytes

    @property
    def slices(self) -> int:
        """K tiles of a group of warps: of all units; backward of the gates of the block, in a grid of its column."""
        own = self._gates * self.units * self.down if self.problem.is_backward else self.units * self.blocks
        return ceil(own / (self._slice * self.groups))

    @property
    def row_tiles(self) -> int:
        """M tiles (16 rows) of a warp: of the block's own gates; backward of all units, in a grid of those of its row."""
        rows = self.units * self.across if self.problem.is_backward else self._gates * self.units
        return ceil(rows * self.groups / (16 * WARPS))

    @property
    def all_slices(self) -> int:
        """`slices`, and the K tiles of other weights that a group of warps multiplies in a step."""
        return self.slices

    @property
    def whole_parts(self) -> int:
        """Fragments of weights that a warp multiplies, however they are stored."""
        return self.row_tiles * self.all_slices

    @property
    def parts(self) -> int:
        """Fragments of weights that a warp stores."""
        return self.whole_parts

    @property
    def together(self) -> int:
        """M tiles that are multiplied by the same K tile at once: backward some, so that their sums are sent meanwhile."""
        if not self.problem.is_backward or self.is_grid:
            return self.row_tiles
        return max(some for some in (1, 2, 3, 4) if self.row_tiles % some == 0 and some * 2 <= max(self.row_tiles, 2))

    @property
    def left_over(self) -> int:
        return self.parts - self.held - self.shared

    @property
    def left_over_bytes(self) -> int:
        """Bytes of memory for the fragments that a cluster streams."""
        return self.left_over * PART_BYTES * self.blocks

    @property
    def states(self) -> int:
        """States of a thread in a tile."""
        return ceil(self.units * TILE / self.gate_threads)

    @property
    def _has_gate_warps(self) -> bool:
        """Whether the states are computed by warps that do not multiply, the pointwise warps."""
        return not self.problem.is_backward and not self.is_grid

    @property
    def gate_threads(self) -> int:
        """Threads that compute the states. Pointwise warps have more of them where weights leave them the registers."""
        if not self._has_gate_warps:
            return _THREADS
        return 256 if self.problem.arithmetic.bytes == 2 and self.units * TILE <= 256 else 128

    @property
    def gate_registers(self) -> int:
        """Registers of a thread of the pointwise warps."""
        return {1: 72, 2: 96}.get(self.states, 120)

    @property
    def reader_registers(self) -> int:
        """Registers of a thread of the load warps."""
        return _READER_REGISTERS.get(self.readers, 0)

    @property
    def _threads_beside(self) -> int:
        """Threads that do not multiply."""
        return self.gate_threads if self._has_gate_warps else self.readers

    @property
    def _registers_beside(self) -> int:
        """Registers of all threads that do not multiply."""
        return self._threads_beside * (self.gate_registers if self._has_gate_warps else self.reader_registers)

    @property
    def launched_registers(self) -> int:
        """Registers of each thread at launch."""
        return _REGISTERS // (_THREADS + self._threads_beside) // 8 * 8

    @property
    def other_registers(self) -> int:
        """Registers of a thread that multiplies, after the others have released theirs; 0 where none are reallocated."""
        if self.is_grid and not (self.buffers and self.moves_registers):
            return 0
        return (self.launched_registers * (_THREADS + self._threads_beside) - self._registers_beside) // _THREADS // 8 * 8

    @property
    def extra_registers(self) -> int:
        """Registers that a thread that multiplies needs in addition, forward in a cluster."""
        return 0

    @property
    def most_held(self) -> int:
        """Fragments that a thread has registers for, measured by compiling without spills."""
        is_split = self.problem.arithmetic.is_split
        if self.problem.is_backward and not self.is_grid:
            of_states = (2 if self._gates == 1 else 4) * min(self.states - 1, 2)
            return _MOST_PARTS_HELD - of_states - (self.together - 2) - 6 * is_split
        if self.is_grid:
            others = 8 * self.row_tiles + 16 if is_split else 6 * self.row_tiles + 10
            others += 16 * (self.states - 1) * self.problem.is_backward
            others += PART_REGISTERS * (self.row_tiles > 4 and self.tiles > 1 and not self.problem.is_backward)
            if self.buffers:
                room = self.other_registers or self.launched_registers - 8
                return (room - _OTHER_REGISTERS - others - 32 * is_split) // PART_REGISTERS
            return _MOST_PARTS_HELD - ceil(others / PART_REGISTERS)
        others = _OTHER_REGISTERS + 6 * (self.row_tiles - 1) + 32 * is_split + self.extra_registers
        return (self.other_registers - others) // PART_REGISTERS

    @property
    def best_held(self) -> int:
        """Fragments best in registers if shared memory has room for the others. In a forward grid splitting needs registers."""
        is_fewer = self.is_grid and self.problem.arithmetic.is_split and not self.problem.is_backward
        return min(self.most_held, _BEST_HELD_SPLIT) if is_fewer else self.most_held

    @property
    def may_spill(self) -> int:
        """Fragments that a thread may hold beyond `most_held`, where then none are streamed."""
        return int(self.buffers > 0)

    @property
    def told_bytes(self) -> int:
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
    def parcels(self) -> tuple[int, int]:
        """Packets that a grid's block reads, of a tile and step: of states, backward its column's gradients; its row's sums."""
        size = self.problem.arithmetic.told_bytes
        if not self.is_in_rows:
            return self.blocks * self._parcels(self.units, size), 0
        return self.down * self._parcels(self._gates * self.units, size), self.across * self._parcels(self.units, 4)

    @property
    def heard_bytes(self) -> int:
        """Bytes that a block receives of a tile in a step, without the packets' epochs."""
        return 12 * sum(self.parcels) if self.is_grid else self.told_bytes * self.blocks

    @property
    def handoff_bytes(self) -> int:
        """Bytes of memory for the packets of all blocks of a grid."""
        values, sums = self.parcels
        return 2 * self.clusters * self.tiles * 16 * (values * self.across + sums * self.blocks if self.is_in_rows else values)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block, as the kernels' SharedStorage has them."""
        return self.bytes_beside + PART_BYTES * max(1, self.shared + self.ring * self.together)

    @property
    def bytes_beside(self) -> int:
        """Bytes of `shared_bytes` that are not weights."""
        carried = 4 * self.tiles * (self.states * self.gate_threads + TILE)  # and where sequences end
        states = self.slices * self.groups * TILE * SLICE_BYTES
        if self.problem.is_backward:
            carried += 4 * self.tiles * self.states * _THREADS
            return (self._shared_in_rows(states) if self.is_grid else self._shared_in_cluster) + carried
        own = max(1, self.buffers) * states + self.told_bytes + 48 if self.is_grid else 128 + 2 * self.tiles * states + 16
        units = self.row_tiles * 16 * WARPS // self.groups // self._gates + 1
        sums = self._sums_bytes(units, TILE) * (2 if self._has_gate_warps else 1)
        return own + sums + 16 * self.units + carried

    def _sums_bytes(self, units: int, sequences: int) -> int:
        """Bytes of a tile's sums, forward, with room for `units` and `sequences`."""
        return 4 * self.groups * units * (4 + sequences * (1 if self._gates == 1 else 4))

    @property
    def _shared_in_cluster(self) -> int:
        """Bytes of shared memory backward in a cluster: barriers, sums, and the block's own gradients."""
        return 128 + 2 * self.tiles * self.told_bytes * self.blocks + 2 * self.slices * TILE * SLICE_BYTES

    def _shared_in_rows(self, states: int) -> int:
        """Bytes of shared memory backward in a grid: the product's columns, own gradients, own sums and received sums."""
        own = self._gates * self.units * TILE * self.problem.arithmetic.bytes + 32
        sums = 4 * TILE * (self.row_tiles * 16 * WARPS + 4 * self.groups)
        return states + own + sums + 12 * self.parcels[1] + 16

    @property
    def product_us(self) -> float:
        """Estimated us of a tile's product."""
        each = self.problem.arithmetic.products
        loss = _GRID_LOSS if self.is_grid and self.tiles == 1 and not self.problem.is_backward else _LOSS
        products = max(self.parts * WARPS / 4 * each * PRODUCT_CLOCKS, self.all_slices * each * _CHAIN_CLOCKS)
        reads = WARPS * self.parts // self.together * TILE * SLICE_BYTES + PART_BYTES * (self.parts - self.held)
        split = WARPS / 4 * (self.parts * SPLIT_CLOCKS[0] + self.all_slices * SPLIT_CLOCKS[1])
        left = self.left_over * PART_BYTES / L2_BYTES_A_CLOCK
        is_full = self.problem.arithmetic.is_split and not self.problem.is_backward
        spilled = is_full * max(0, self.row_tiles - _MOST_SUMS) * _SPILLED_CLOCKS
        split *= self.problem.arithmetic.is_split
        return (max(_LOSS * products, loss * reads / SHARED_BYTES_A_CLOCK, split, left) + spilled) * CLOCK_US

    @property
    def step_us(self) -> float:
        """Estimated us of a step of all tiles, by which forms are compared."""
        if self.is_in_rows:
            return self._us_in_rows
        if not self.is_grid:
            return self._cluster_us
        return self._us_by_readers if self.readers else self._grid_us

    @property
    def _telling_us(self) -> float:
        """Estimated us for a cluster's block to publish a tile."""
        return self.blocks * (_BLOCK_US + _TOLD_US * self.told_bytes / 128)

    def _one_tile_us(self, found_us: float) -> float:
        """Estimated us between a tile's steps, in a cluster. found_us: to compute its states once all sums are there."""
        return self.product_us + found_us + self._telling_us + _HANDOFF_US

    @property
    def _cluster_us(self) -> float:
        """Estimated us of a step in a cluster: from one step of a tile to the next, or of all tiles one after the other."""
        gates = _GATES_US * self.states
        one = self._one_tile_us(gates + _SUMS_US * self.groups)
        if self.tiles == 1:
            return one
        if self.problem.is_backward:
            product = 1.0 if self.problem.arithmetic.is_split else _SEVERAL_PRODUCT
            return self.tiles * (_SEVERAL_US + product * self.product_us)
        return max(_SEVERAL * self.tiles * max(self.product_us, gates + self._telling_us), one)

    @property
    def _grid_us(self) -> float:
        parcel = _PARCEL_US + _SHARED_PARCEL_US * self._shares_parcels
        each = self._parcels_of_one(_THREADS)
        reads = parcel * self._unpacked * each + _ROUND_US * (ceil(each / PARCELS_AT_ONCE) - 1)
        gates = _GRID_STATE_US * self.states + _GRID_SUMS_US * max(0, self.row_tiles - 3)
        return self.tiles * (_GRID_TILE_US + gates + _GRID_PRODUCT * self.product_us + reads)

    @property
    def _us_by_readers(self) -> float:
        by = _READING_ONE[self.readers, self.problem.arithmetic.bytes] if self.tiles == 1 else _READING_MORE
        tile, product, parcel, shared, sums = by
        each = self._parcels_of_one(self.readers)
        rounds = ceil(each / (2 * PARCELS_AT_ONCE))
        reads = (parcel + shared * self._shares_parcels) * each + _READING_ROUND_US * (rounds - 1)
        gates = sums * self.row_tiles + _READING_STATE_US * (self.states - 1)
        return self.tiles * (tile + product * self.product_us + reads + gates)

    @property
    def _us_in_rows(self) -> float:
        gradients, sums = (ceil(parcels / _THREADS) for parcels in self.parcels)
        reads = _GRADIENTS_US * self._unpacked * gradients + _PARTS_US * sums
        reads += _BACKWARD_SHARED_US * (self._unpacked > 1 and self._shares_parcels)
        return _BACKWARD_US + self.tiles * (_BACKWARD_TILE_US + _BACKWARD_PRODUCT * self.product_us + reads)

    @property
    def _unpacked(self) -> int:
        """Words of a packet once unpacked, in threes: TF32 is packed."""
        return self.problem.arithmetic.bytes // self.problem.arithmetic.told_bytes

    @property
    def _shares_parcels(self) -> bool:
        """Whether a packet may hold two sequences' values, which takes longer where it is not all float32."""
        values = self._gates * self.units if self.is_in_rows else self.units
        words = values * self.problem.arithmetic.bytes // 4
        return not self.problem.arithmetic.is_split and words % (3 * self._unpacked) > 0

    def _parcels_of_one(self, threads: int) -> int:
        return ceil(self.parcels[0] / threads)

    @property
    def width(self) -> int:
        """Bytes of weights that are read at once: forward as many as divide a row, backward an element."""
        size = self.problem.arithmetic.bytes
        return size if self.problem.is_backward else gcd(self.problem.hidden * size, _MOST_WIDE)

    @cached_property
    def launch(self) -> Launch:
        return Launch(self.clusters_of_all * self.blocks, _THREADS + self._threads_beside, self.shared_bytes)

    @property
    def macros(self) -> dict[str, int]:
        found = {
            "UNITS": self.units,
            "TILES": self.tiles,
            "K_PARTITIONS": self.groups,
            "M_TILES_PER_PASS": self.together,
            "REG_FRAGMENTS": self.held,
            "SMEM_FRAGMENTS": self.shared,
            "STREAM_STAGES": self.ring,
        }
        if self.is_grid:
            found["SEQUENCES"] = self.sequences
        found |= {"GRID_ROWS": self.down, "GRID_COLS": self.across} if self.is_in_rows else {"BLOCKS": self.blocks}
        if self._has_gate_warps:
            found |= {"GATE_THREADS": self.gate_threads, "GATE_REGISTERS": self.gate_registers}
        elif not self.problem.is_backward:
            found |= {"BUFFERS": self.buffers, "LOAD_THREADS": self.readers, "LOAD_REGISTERS": self.reader_registers}
        if not self.problem.is_backward:
            found["OTHER_REGISTERS"] = self.other_registers
        return found | {"SHARED_BYTES": self.shared_bytes, "USE_3XTF32": int(self.problem.arithmetic.is_split)}

    def __str__(self) -> str:
        near = [f"{self.held} in registers"] + [f"{self.shared} in shared memory"] * (self.shared > 0)
        where = ", ".join(near + [f"{self.left_over} in the L2 cache"] * (self.left_over > 0))
        what = "groups over the grid" if self.is_grid else "clusters"
        blocks = f"{self.down} x {self.across}" if self.is_in_rows else str(self.blocks)
        return (
            f"{what}: {self.clusters} of {blocks} blocks, {self.wide * self.tiles} sequences each, {self.units} units a "
            f"block; parts of the weights: {where}"
        )
