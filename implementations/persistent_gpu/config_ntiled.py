"""How a grid's blocks take several tiles of 8 sequences as one: each weight is read, and where need be split, once for all.

Of float32 some parts, or all, are split once for all steps, and kept as two: a half more to keep, and to read, in place of what
splitting takes.

What blocks tell each other comes in parcels of what one lane has of a product's columns, and goes from the L2 cache to the
tensor cores by way of registers alone (cuda/heard_columns.cuh).
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
# On an H200, in us: of a step beside its product, where float32 is split and otherwise; of 16 rows' sums of 8 sequences, of a
# state of a thread but one and 8 sequences, to meet once more. Of what they would take alone: products and weights from shared
# memory, where float32 is split products and splitting, where some of it is split once products and, in clocks, what each slice
# takes beside them; parcels that a block reads, likewise.
_STEP_US, _SUMS_US, _STATE_US, _MEETING_US = {True: 1.15, False: 1.2}, 0.046, {True: 0.3, False: 0.1}, 0.05
_PRODUCT, _NEAR, _READ = 1.35, 0.45, {True: 0.5, False: 0.8}
_SPLIT_PRODUCT, _SPLITTING, _TWICE_PRODUCT, _SLICE_CLOCKS = 0.8, 0.63, 1.1, 160


@dataclass(frozen=True)
class Abreast(Form):
    """abreast: tiles of 8 sequences that are one. sums: times that a block has room for its sums: with 1 it meets once more.

    twice: parts of split float32 that are kept in two halves; the others are split anew in every step.
    """

    abreast: int = 1
    sums: int = 2
    twice: int = 0

    @property
    def parts(self) -> int:
        """A half counts as one."""
        return self.whole_parts + self.twice

    @property
    def parcels_at_once(self) -> int:
        """Of each 8 sequences, that a lane has at hand: those that are late are read in vain."""
        if self.abreast == 1:
            return 8
        return 4 if self.abreast == 2 and not self.problem.arithmetic.is_split else 2

    @property
    def wide(self) -> int:
        return TILE * self.abreast

    @property
    def sequences(self) -> int:
        """As many as there are of several tiles, and no more: a multiple of 4."""
        if self.abreast == 1:
            return super().sequences
        return min(self.wide, ceil(self.problem.batch / 4) * 4)

    @property
    def _parcel_words(self) -> int:
        """Of what a lane has of columns: TF32 comes packed."""
        return 3 * self.problem.arithmetic.bytes // self.problem.arithmetic.told_bytes

    @property
    def _parcel_units(self) -> int:
        return self._parcel_words * 4 // self.problem.arithmetic.bytes

    @property
    def _unit_parcels(self) -> int:
        """Of a block's units, of each sequence."""
        return ceil(self.units / self._parcel_units)

    @property
    def lane_parcels(self) -> int:
        """Of each sequence."""
        return ceil(self.blocks * self._unit_parcels / _LANES)

    @property
    def slices(self) -> int:
        return ceil(self.lane_parcels * self._parcel_words / 4)

    @property
    def states(self) -> int:
        """A warp's own parcels, one after the other."""
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
        """Parts that a thread has registers for, found by compiling."""
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
        """Where float32 is split addresses go to memory, and come back once in a step."""
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
        names = ("abreast", "parcels_at_once", "sums", "twice")
        return super().macros | {name.upper(): getattr(self, name) for name in names}

    def __str__(self) -> str:
        return super().__str__() + f"; {self.twice} of {self.whole_parts} in two halves" * (self.twice > 0)
