"""Forms of a grid that multiply several tiles of 8 sequences as one: each weight is read, and split if need be, once for all.

Some fragments of float32, or all, are split once for all steps and stored as two. A half more is then stored and read; the
splitting takes no time.

Blocks publish packets, each of them one lane's part of a product's columns. States go from the L2 cache to the tensor cores by
way of registers alone (_cuda/heard_columns.cuh).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from pytest_ecornn.implementations.persistent_gpu.config import (
    CLOCK_US,
    L2_BYTES_A_CLOCK,
    PART_BYTES,
    PART_REGISTERS,
    PRODUCT_CLOCKS,
    SHARED_BYTES_A_CLOCK,
    SPLIT_CLOCKS,
    TILE,
    WARPS,
    Form,
)

_LANES = 4 * WARPS  # that have different columns
_MOST_HELD_TWICE = 20
# Measured on an H200, in us: of a step beside its product, by whether float32 is split; of 16 rows' sums of 8 sequences; of a
# thread's state beyond the first, of 8 sequences; of one more barrier. Factors of what each would take alone: products and
# weights from shared memory; of split float32 products and splitting; where some of it is split once products, and the clocks
# of each K tile beside them; packets that a block reads, by whether float32 is split.
_STEP_US, _SUMS_US, _STATE_US, _MEETING_US = {True: 1.15, False: 1.2}, 0.046, {True: 0.3, False: 0.1}, 0.05
_PRODUCT, _NEAR, _READ = 1.35, 0.45, {True: 0.5, False: 0.8}
_SPLIT_PRODUCT, _SPLITTING, _TWICE_PRODUCT, _SLICE_CLOCKS = 0.8, 0.63, 1.1, 160


@dataclass(frozen=True)
class Abreast(Form):
    """abreast: tiles of 8 sequences that are multiplied as one. sums: buffers of a block's sums; 1 needs one more barrier.

    twice: fragments of split float32 that are stored in two halves; the others are split anew in every step.
    """

    abreast: int = 1
    sums: int = 2
    twice: int = 0

    @property
    def parts(self) -> int:
        """Fragments that a warp stores; each half of a split one counts."""
        return self.whole_parts + self.twice

    @property
    def parcels_at_once(self) -> int:
        """Packets of each 8 sequences that a lane holds in registers; late ones are polled in vain."""
        if self.abreast == 1:
            return 8
        return 4 if self.abreast == 2 and not self.problem.arithmetic.is_split else 2

    @property
    def wide(self) -> int:
        return TILE * self.abreast

    @property
    def sequences(self) -> int:
        """Sequences of a tile that are published; of several tiles as one no more than there are, rounded up to 4."""
        if self.abreast == 1:
            return super().sequences
        return min(self.wide, ceil(self.problem.batch / 4) * 4)

    @property
    def _parcel_words(self) -> int:
        """Words of a packet once unpacked, a lane's part of the columns: TF32 is packed."""
        return 3 * self.problem.arithmetic.bytes // self.problem.arithmetic.told_bytes

    @property
    def _parcel_units(self) -> int:
        return self._parcel_words * 4 // self.problem.arithmetic.bytes

    @property
    def _unit_parcels(self) -> int:
        """Packets of a block's units, of each sequence."""
        return ceil(self.units / self._parcel_units)

    @property
    def lane_parcels(self) -> int:
        """Packets that a lane reads, of each sequence."""
        return ceil(self.blocks * self._unit_parcels / _LANES)

    @property
    def slices(self) -> int:
        return ceil(self.lane_parcels * self._parcel_words / 4)

    @property
    def states(self) -> int:
        """States of a thread: those of its warp's own packets, one after the other."""
        return ceil(ceil(self.sequences * self._unit_parcels / WARPS) * self._parcel_units / 32)

    @property
    def parcels(self) -> tuple[int, int]:
        return self.sequences * self.blocks * self._unit_parcels, 0

    @property
    def handoff_bytes(self) -> int:
        return 2 * self.clusters * self.tiles * 16 * self.wide * self.lane_parcels * _LANES

    @property
    def bytes_beside(self) -> int:
        told = self.tiles * self.wide * self._unit_parcels * self._parcel_words * 4
        carried = 4 * self.tiles * (self.states * self.gate_threads + self.wide)  # and where sequences end
        inputs = 4 * self.states * self._gates * self.gate_threads
        sums = self._sums_bytes(self.units, self.sequences) * self.sums
        return told + inputs + sums + 16 * self.units + carried + 16

    @property
    def most_held(self) -> int:
        """Fragments that a thread has registers for, measured by compiling."""
        several, parcels = self.abreast - 1, min(self.parcels_at_once, self.lane_parcels)
        if self.twice:
            others = 8 + 4 * self.abreast * (4 * self.row_tiles + parcels) + 12 * several
            return min(_MOST_HELD_TWICE, (255 - others) // PART_REGISTERS)
        others = 38 + 4 * self.abreast * (self.row_tiles + parcels) + 24 * several + 8 * (self.states - 1)
        others += (12 * self.abreast + 40) * self.problem.arithmetic.is_split
        return (255 - others) // PART_REGISTERS

    @property
    def best_held(self) -> int:
        return self.most_held

    @property
    def may_spill(self) -> int:
        """Fragments beyond `most_held`. Of split float32 addresses spill to memory and are reloaded once in a step."""
        return 9 if self.problem.arithmetic.is_split and self.abreast > 1 else 1

    @property
    def product_us(self) -> float:
        products = 2 * self.whole_parts * self.abreast * self.problem.arithmetic.products * PRODUCT_CLOCKS
        near = (self.parts - self.held) * PART_BYTES / SHARED_BYTES_A_CLOCK
        if not self.problem.arithmetic.is_split:
            return (_PRODUCT * products + _NEAR * near) * CLOCK_US
        weights, columns = (_SPLITTING * 2 * clocks for clocks in SPLIT_CLOCKS)
        if self.twice:
            split = (self.whole_parts - self.twice) * weights + self.slices * _SLICE_CLOCKS
            return max(_TWICE_PRODUCT * products + split, near) * CLOCK_US
        return (_SPLIT_PRODUCT * products + self.whole_parts * weights + self.slices * self.abreast * columns) * CLOCK_US

    @property
    def step_us(self) -> float:
        is_split = self.problem.arithmetic.is_split
        reads = _READ[is_split] * 16 * self.parcels[0] / L2_BYTES_A_CLOCK * CLOCK_US
        sums = _SUMS_US * self.abreast * self.row_tiles + _STATE_US[is_split] * self.abreast * (self.states - 1)
        return self.tiles * (_STEP_US[is_split] + self.product_us + reads + sums + _MEETING_US * (self.sums == 1))

    @property
    def macros(self) -> dict[str, int]:
        own = {
            "N_TILES": self.abreast,
            "PACKETS_IN_FLIGHT": self.parcels_at_once,
            "SUM_BUFFERS": self.sums,
            "PRESPLIT_FRAGMENTS": self.twice,
        }
        return super().macros | own

    def __str__(self) -> str:
        return super().__str__() + f"; {self.twice} of {self.whole_parts} in two halves" * (self.twice > 0)
