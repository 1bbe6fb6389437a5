"""What a form of persistent_gpu needs of a multiprocessor: the registers of its threads, and a block's shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from pytest_ecornn.implementations.persistent_gpu.tiling import (
    FRAGMENT_BYTES,
    FRAGMENT_REGISTERS,
    K_TILE_BYTES,
    THREADS,
    TILE,
    WARPS,
    Tiling,
)

_REGISTERS = 65_536  # of a multiprocessor
_MAX_REG_FRAGMENTS = 22  # of 255 registers
_NON_WEIGHT_REGISTERS = 48  # of a thread that multiplies, beside weights
_BEST_HELD_SPLIT = 10  # fragments that are best in registers, of one tile's product in a grid with split float32, forward
_LOAD_REGISTERS = {128: 104, 256: 72}  # of a load warp's thread, by the number of such threads


@dataclass(frozen=True)
class Resources(Tiling):
    """Registers and shared memory of a form."""

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
