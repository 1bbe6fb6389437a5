"""Forms of a grid that multiply several tiles of 8 sequences as one: each weight is read, and split if need be, once for all.

Some fragments of float32, or all, are split once for all steps and stored as two. A half more is then stored and read; the
splitting takes no time.

Blocks publish packets, each of them one lane's part of a product's columns. States go from the L2 cache to the tensor cores by
way of registers alone (kernels/ll_b_fragments.cuh).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pytest_ecornn.implementations._common.sizes import ceil_div, maximum, minimum, where
from pytest_ecornn.implementations.persistent_gpu.config import (
    FRAGMENT_BYTES,
    FRAGMENT_REGISTERS,
    L2_BYTES_PER_CLOCK,
    MMA_CLOCKS,
    SMEM_BYTES_PER_CLOCK,
    SPLIT_FRAGMENT_CLOCKS,
    SPLIT_K_TILE_CLOCKS,
    TILE,
    US_PER_CLOCK,
    WARPS,
    Form,
)

_LANES = 4 * WARPS  # that have different columns
_MAX_PRESPLIT_FRAGMENTS = 20
# By whether float32 is split: a step beside its product, a thread's state beyond the first, the factor of packets' reads.
_STEP_US, _STATE_US, _READ_FACTOR = {False: 1.2, True: 1.15}, {False: 0.1, True: 0.3}, {False: 0.8, True: 0.5}
_M_TILE_SUMS_US = 0.046  # the sums of an M tile by an N tile
_BARRIER_US = 0.05  # one more barrier, where sums have one buffer
# The factors of mma and of weights from shared memory, whose times add up; of split float32 of mma and of splitting, likewise.
# Where some fragments are split once for all steps of mma, and each K tile's clocks beside them.
_PRODUCT_FACTOR, _SMEM_FACTOR, _SPLIT_PRODUCT_FACTOR, _SPLITTING_FACTOR = 1.35, 0.45, 0.8, 0.63
_PRESPLIT_PRODUCT_FACTOR, _PRESPLIT_K_TILE_CLOCKS = 1.1, 160


@dataclass(frozen=True)
class NTiledGridConfig(Form):
    """`n_tiles` count as one of `tiles`. sum_buffers: of a block's sums; 1 needs one more barrier.

    presplit_fragments: fragments of split float32 that are stored in two halves; the others are split anew in every step.
    """

    sum_buffers: int = 2
    presplit_fragments: int = 0

    @property
    def kind(self) -> str:
        return f"grid, {self.tile_batch} sequences at once" + ", weights split once" * (self.presplit_fragments > 0)

    @property
    def fragments_per_warp(self) -> int:
        """Fragments that a warp stores; each half of a split one counts."""
        return self.fragments + self.presplit_fragments

    @property
    def packets_in_registers(self) -> int:
        """Packets of each 8 sequences that a lane holds in registers; late ones are polled in vain."""
        is_packed = self.problem.arithmetic.exchanged_bytes < self.problem.arithmetic.bytes
        of_one = where(self.stream_stages > 0, 6, 8) if is_packed else 8
        of_two = 2 if self.problem.arithmetic.is_3xtf32 else 4
        return where(self.n_tiles == 1, of_one, where(self.n_tiles == 2, of_two, 2))

    @property
    def tile_batch(self) -> int:
        return TILE * self.n_tiles

    @cached_property
    def sequences(self) -> int:
        """Sequences of a tile that are published; of several tiles as one no more than there are, rounded up to 4."""
        return where(self.n_tiles == 1, super().sequences, minimum(self.tile_batch, ceil_div(self.problem.batch, 4) * 4))

    @property
    def _parcel_words(self) -> int:
        """Words of a packet once unpacked, a lane's part of the columns: TF32 is packed."""
        return 3 * self.problem.arithmetic.bytes // self.problem.arithmetic.exchanged_bytes

    @property
    def _parcel_units(self) -> int:
        return self._parcel_words * 4 // self.problem.arithmetic.bytes

    @cached_property
    def _unit_parcels(self) -> int:
        """Packets of a block's units, of each sequence."""
        return ceil_div(self.units, self._parcel_units)

    @cached_property
    def packets_per_lane(self) -> int:
        """Packets that a lane reads, of each sequence."""
        return ceil_div(self.blocks * self._unit_parcels, _LANES)

    @cached_property
    def k_tiles_per_warp(self) -> int:
        return ceil_div(self.packets_per_lane * self._parcel_words, 4)

    @cached_property
    def states_per_thread(self) -> int:
        """States of a thread: those of its warp's own packets, one after the other."""
        return ceil_div(ceil_div(self.sequences * self._unit_parcels, WARPS) * self._parcel_units, 32)

    @property
    def packets(self) -> tuple[int, int]:
        return self.sequences * (self.blocks * self._unit_parcels), 0

    @property
    def mailbox_bytes(self) -> int:
        return 2 * self.clusters * self.tiles * 16 * self.tile_batch * self.packets_per_lane * _LANES

    @cached_property
    def non_weight_smem_bytes(self) -> int:
        told = self.tiles * self.tile_batch * (4 * self._parcel_words * self._unit_parcels)
        carried = (
            4 * self.tiles * (self.states_per_thread * self.pointwise_threads + self.tile_batch)
        )  # and where sequences end
        inputs = 4 * self._gates * self.pointwise_threads * self.states_per_thread
        sum_bytes = self._sums_bytes(self.units, self.sequences) * self.sum_buffers
        return told + inputs + sum_bytes + 16 * self.units + carried + 16

    @cached_property
    def max_reg_fragments(self) -> int:
        """Fragments that a thread has registers for, measured by compiling."""
        several, parcels = self.n_tiles - 1, minimum(self.packets_in_registers, self.packets_per_lane)
        if np.any(self.presplit_fragments):
            others = 8 + 4 * self.n_tiles * (4 * self.m_tiles_per_warp + parcels) + 12 * several
            return minimum(_MAX_PRESPLIT_FRAGMENTS, (255 - others) // FRAGMENT_REGISTERS)
        others = 38 + 4 * self.n_tiles * (self.m_tiles_per_warp + parcels) + 24 * several + 8 * (self.states_per_thread - 1)
        if self.problem.arithmetic.is_3xtf32:
            others = others + 12 * self.n_tiles + 40
        return (255 - others) // FRAGMENT_REGISTERS

    @property
    def preferred_reg_fragments(self) -> int:
        return self.max_reg_fragments

    @property
    def allowed_spilled_fragments(self) -> int:
        """Fragments beyond `max_reg_fragments`. Of split float32 addresses spill to memory and are reloaded once in a step."""
        return where(self.n_tiles > 1, 9, 1) if self.problem.arithmetic.is_3xtf32 else 1

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

    @cached_property
    def product_us(self) -> float:
        products = 2 * self.problem.arithmetic.products * (self.fragments * self.n_tiles) * MMA_CLOCKS
        near = (self.fragments_per_warp - self.reg_fragments) * FRAGMENT_BYTES / SMEM_BYTES_PER_CLOCK
        if not self.problem.arithmetic.is_3xtf32:
            return (_PRODUCT_FACTOR * products + _SMEM_FACTOR * near) * US_PER_CLOCK
        weights, sequences = (_SPLITTING_FACTOR * 2 * clocks for clocks in (SPLIT_FRAGMENT_CLOCKS, SPLIT_K_TILE_CLOCKS))
        if np.any(self.presplit_fragments):
            split = (self.fragments - self.presplit_fragments) * weights + self.k_tiles_per_warp * _PRESPLIT_K_TILE_CLOCKS
            return maximum(_PRESPLIT_PRODUCT_FACTOR * products + split, near) * US_PER_CLOCK
        clocks = _SPLIT_PRODUCT_FACTOR * products + self.fragments * weights + self.k_tiles_per_warp * self.n_tiles * sequences
        return clocks * US_PER_CLOCK

    @cached_property
    def step_us(self) -> float:
        is_3xtf32 = self.problem.arithmetic.is_3xtf32
        reads = _READ_FACTOR[is_3xtf32] * 16 * self.packets[0] / L2_BYTES_PER_CLOCK * US_PER_CLOCK
        sums_us = _M_TILE_SUMS_US * self.n_tiles * self.m_tiles_per_warp
        sums_us = sums_us + _STATE_US[is_3xtf32] * self.n_tiles * (self.states_per_thread - 1)
        tile_us = _STEP_US[is_3xtf32] + self.product_us + reads + sums_us + _BARRIER_US * (self.sum_buffers == 1)
        return self.tiles * tile_us + self._stream_wait_us
