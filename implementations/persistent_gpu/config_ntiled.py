"""Forms of a grid that multiply several tiles of 8 sequences as one: each weight is read, and split if need be, once for all.

Some fragments of float32, or all, are split once for all steps and stored as two. A half more is then stored and read; the
splitting takes no time.

Blocks publish packets, each of them one lane's part of a product's columns. States go from the L2 cache to the tensor cores by
way of registers alone (kernels/ll_b_fragments.cuh).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.tiling import PART_REGISTERS, TILE, WARPS

_LANES = 4 * WARPS  # that have different columns
_MOST_HELD_TWICE = 20


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
    def macros(self) -> dict[str, int]:
        own = {
            "ABREAST": self.abreast,
            "PARCELS_AT_ONCE": self.parcels_at_once,
            "SUMS": self.sums,
            "TWICE": self.twice,
        }
        return super().macros | own

    def __str__(self) -> str:
        return super().__str__() + f"; {self.twice} of {self.whole_parts} in two halves" * (self.twice > 0)
