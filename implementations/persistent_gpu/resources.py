"""What a form of persistent_gpu needs of a multiprocessor: the registers of its threads, and a block's shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from pytest_ecornn.implementations.persistent_gpu.tiling import (
    PART_BYTES,
    PART_REGISTERS,
    SLICE_BYTES,
    THREADS,
    TILE,
    WARPS,
    Tiling,
)

_REGISTERS = 65_536  # of a multiprocessor
_MOST_PARTS_HELD = 22  # of 255 registers
_OTHER_REGISTERS = 48  # of a thread that multiplies, beside weights
_BEST_HELD_SPLIT = 10  # fragments that are best in registers, of one tile's product in a grid with split float32, forward
_READER_REGISTERS = {128: 104, 256: 72}  # of a load warp's thread, by the number of such threads


@dataclass(frozen=True)
class Resources(Tiling):
    """Registers and shared memory of a form."""

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
        return _REGISTERS // (THREADS + self._threads_beside) // 8 * 8

    @property
    def other_registers(self) -> int:
        """Registers of a thread that multiplies, after the others have released theirs; 0 where none are reallocated."""
        if self.is_grid and not (self.buffers and self.moves_registers):
            return 0
        return (self.launched_registers * (THREADS + self._threads_beside) - self._registers_beside) // THREADS // 8 * 8

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
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block, as the kernels' SharedStorage has them."""
        return self.bytes_beside + PART_BYTES * max(1, self.shared + self.ring * self.together)

    @property
    def bytes_beside(self) -> int:
        """Bytes of `shared_bytes` that are not weights."""
        carried = 4 * self.tiles * (self.states * self.gate_threads + TILE)  # and where sequences end
        states = self.slices * self.groups * TILE * SLICE_BYTES
        if self.problem.is_backward:
            carried += 4 * self.tiles * self.states * THREADS
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
