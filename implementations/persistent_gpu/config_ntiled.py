"""Forms of a grid that multiply several tiles of 8 sequences as one: each weight is read, and split if need be, once for all.

Some fragments of float32, or all, are split once for all steps and stored as two. A half more is then stored and read; the
splitting takes no time.

Blocks publish packets, each of them one lane's part of a product's columns. States go from the L2 cache to the tensor cores by
way of registers alone (kernels/ll_b_fragments.cuh).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from pytest_ecornn.implementations.persistent_gpu.config import FRAGMENT_REGISTERS, TILE, WARPS, Form

_LANES = 4 * WARPS  # that have different columns
_MAX_PRESPLIT_FRAGMENTS = 20


@dataclass(frozen=True)
class NTiledGridConfig(Form):
    """`n_tiles` count as one of `tiles`. sum_buffers: of a block's sums; 1 needs one more barrier.

    presplit_fragments: fragments of split float32 that are stored in two halves; the others are split anew in every step.
    """

    sum_buffers: int = 2
    presplit_fragments: int = 0

    @property
    def kind(self) -> str:
        return f"grid, {self.wide} sequences at once" + ", weights split once" * (self.presplit_fragments > 0)

    @property
    def fragments_per_warp(self) -> int:
        """Fragments that a warp stores; each half of a split one counts."""
        return self.fragments + self.presplit_fragments

    @property
    def packets_in_registers(self) -> int:
        """Packets of each 8 sequences that a lane holds in registers; late ones are polled in vain."""
        if self.n_tiles == 1:
            return 6 if self.stream_stages and self.problem.arithmetic.exchanged_bytes < self.problem.arithmetic.bytes else 8
        return 4 if self.n_tiles == 2 and not self.problem.arithmetic.is_3xtf32 else 2

    @property
    def wide(self) -> int:
        return TILE * self.n_tiles

    @property
    def sequences(self) -> int:
        """Sequences of a tile that are published; of several tiles as one no more than there are, rounded up to 4."""
        if self.n_tiles == 1:
            return super().sequences
        return min(self.wide, ceil(self.problem.batch / 4) * 4)

    @property
    def _parcel_words(self) -> int:
        """Words of a packet once unpacked, a lane's part of the columns: TF32 is packed."""
        return 3 * self.problem.arithmetic.bytes // self.problem.arithmetic.exchanged_bytes

    @property
    def _parcel_units(self) -> int:
        return self._parcel_words * 4 // self.problem.arithmetic.bytes

    @property
    def _unit_parcels(self) -> int:
        """Packets of a block's units, of each sequence."""
        return ceil(self.units / self._parcel_units)

    @property
    def packets_per_lane(self) -> int:
        """Packets that a lane reads, of each sequence."""
        return ceil(self.blocks * self._unit_parcels / _LANES)

    @property
    def k_tiles_per_warp(self) -> int:
        return ceil(self.packets_per_lane * self._parcel_words / 4)

    @property
    def states_per_thread(self) -> int:
        """States of a thread: those of its warp's own packets, one after the other."""
        return ceil(ceil(self.sequences * self._unit_parcels / WARPS) * self._parcel_units / 32)

    @property
    def packets(self) -> tuple[int, int]:
        return self.sequences * self.blocks * self._unit_parcels, 0

    @property
    def mailbox_bytes(self) -> int:
        return 2 * self.clusters * self.tiles * 16 * self.wide * self.packets_per_lane * _LANES

    @property
    def non_weight_smem_bytes(self) -> int:
        told = self.tiles * self.wide * self._unit_parcels * self._parcel_words * 4
        carried = 4 * self.tiles * (self.states_per_thread * self.pointwise_threads + self.wide)  # and where sequences end
        inputs = 4 * self.states_per_thread * self._gates * self.pointwise_threads
        sum_bytes = self._sums_bytes(self.units, self.sequences) * self.sum_buffers
        return told + inputs + sum_bytes + 16 * self.units + carried + 16

    @property
    def max_reg_fragments(self) -> int:
        """Fragments that a thread has registers for, measured by compiling."""
        several, parcels = self.n_tiles - 1, min(self.packets_in_registers, self.packets_per_lane)
        if self.presplit_fragments:
            others = 8 + 4 * self.n_tiles * (4 * self.m_tiles_per_warp + parcels) + 12 * several
            return min(_MAX_PRESPLIT_FRAGMENTS, (255 - others) // FRAGMENT_REGISTERS)
        others = 38 + 4 * self.n_tiles * (self.m_tiles_per_warp + parcels) + 24 * several + 8 * (self.states_per_thread - 1)
        others += (12 * self.n_tiles + 40) * self.problem.arithmetic.is_3xtf32
        return (255 - others) // FRAGMENT_REGISTERS

    @property
    def preferred_reg_fragments(self) -> int:
        return self.max_reg_fragments

    @property
    def allowed_spilled_fragments(self) -> int:
        """Fragments beyond `max_reg_fragments`. Of split float32 addresses spill to memory and are reloaded once in a step."""
        return 9 if self.problem.arithmetic.is_3xtf32 and self.n_tiles > 1 else 1

    @property
    def macros(self) -> dict[str, int]:
        own = {
            "N_TILES": self.n_tiles,
            "PACKETS_IN_FLIGHT": self.packets_in_registers,
            "SUM_BUFFERS": self.sum_buffers,
            "PRESPLIT_FRAGMENTS": self.presplit_fragments,
        }
        return super().macros | own

    def __str__(self) -> str:
        return super().__str__() + f"; {self.presplit_fragments} of {self.fragments} in two halves" * (
            self.presplit_fragments > 0
        )
