"""The form in which persistent_gpu runs a layer: how it is spread over the chip, what it needs and how long a step takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations.persistent_gpu.resources import Resources
from pytest_ecornn.implementations.persistent_gpu.tiling import PARCELS_AT_ONCE, PART_BYTES, SLICE_BYTES, THREADS, TILE, WARPS

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
_READING_MORE = (0.74, 1.16, 0.035, 0.0, 0.0)
_READING_ONE = {
    (128, 2): (0.82, 0.85, 0.022, 0.014, 0.1),
    (256, 2): (0.8, 0.76, 0.07, 0.037, 0.045),
    (256, 4): (1.13, 0.6, 0.146, 0.054, 0.023),
}
# Of one tile's product in a grid, forward: the factor that warps lose in reading.
_GRID_LOSS = 1.1
_READING_STATE_US, _READING_ROUND_US = 0.4, 4.5
_BACKWARD_US, _BACKWARD_TILE_US, _BACKWARD_SHARED_US = 0.61, 1.08, 0.25
_BACKWARD_PRODUCT, _GRADIENTS_US, _PARTS_US = 0.73, 0.18, 0.25


@dataclass(frozen=True)
class Form(Resources):
    """A tiling, the resources that it needs, its launch and the macros with which its kernel is compiled."""

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
        each = self._parcels_of_one(THREADS)
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
        gradients, sums = (ceil(parcels / THREADS) for parcels in self.parcels)
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

    @cached_property
    def launch(self) -> Launch:
        return Launch(self.clusters_of_all * self.blocks, THREADS + self._threads_beside, self.shared_bytes)

    @property
    def macros(self) -> dict[str, int]:
        names = ["units", "tiles", "groups", "together", "held", "shared", "ring"] + ["sequences"] * self.is_grid
        names += ["down", "across"] if self.is_in_rows else ["blocks"]
        names += ["gate_threads", "gate_registers", "other_registers"] * self._has_gate_warps
        names += ["buffers", "readers", "reader_registers", "other_registers"] * (self.is_grid and not self.problem.is_backward)
        names.append("shared_bytes")
        return {name.upper(): getattr(self, name) for name in names} | {"SPLIT": int(self.problem.arithmetic.is_split)}

    def __str__(self) -> str:
        near = [f"{self.held} in registers"] + [f"{self.shared} in shared memory"] * (self.shared > 0)
        where = ", ".join(near + [f"{self.left_over} in the L2 cache"] * (self.left_over > 0))
        what = "groups over the grid" if self.is_grid else "clusters"
        blocks = f"{self.down} x {self.across}" if self.is_in_rows else str(self.blocks)
        return (
            f"{what}: {self.clusters} of {blocks} blocks, {self.wide * self.tiles} sequences each, {self.units} units a "
            f"block; parts of the weights: {where}"
        )
