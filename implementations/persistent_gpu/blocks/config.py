"""Forms of small layers: a block has all of W_hh in its threads' registers, and sequences of its own; blocks exchange nothing.

Products are fused multiply-adds in float32 (kernels/lane_sums.cuh). Lanes of a group have different columns of the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, ProblemSize
from pytest_ecornn.implementations._common.sizes import axes, ceil_div, maximum, minimum, where
from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations.persistent_gpu.config import US_PER_CLOCK, Candidates, Form

_WARP = 32
_MAX_THREADS = 1024  # of a block
_MAX_REGISTERS = 255  # of a thread
_SUBPARTITION_REGISTERS = 16_384
MAX_BLOCK_HIDDEN = 200  # of RNN, for which they were measured; of the others fewer find room
_FEW = 64  # sequences, up to which clusters take less time than weights in shared memory, of cells with gates
BLOCK_SEQUENCES = (1, 2, 3, 4, 6, 8)  # of a block
_SM_THREADS, _SM_BLOCKS = 2048, 32  # of a multiprocessor at once
_RESERVED_BYTES = 1024  # of shared memory, of each block

# A step forward and backward. Clocks are of a sub-partition, for each of its warps. Fitted on an H100 to "Small layers" of
# docs/notes/persistent_gpu.md.
_STEP_US = (0.14, 0.125)  # in which nothing is issued
_SEQUENCE_US = (0.11, 0.07)  # a block's sequence beyond the first
_FMA_CLOCKS = (1.16, 0.52)  # a multiply-add
_READ_CLOCKS = (0.2, 2.05)  # a value of the operand, and a read of several
_SHUFFLE_CLOCKS = 7.5  # backward
_SMEM_WEIGHT_CLOCKS = (2.5, 2.4)  # a weight from shared memory
_POINTWISE_CLOCKS = (64, 69)  # what is not the product, of a sequence and cell with gates
_SMEM_WEIGHT_US = 0.0025  # each step, for each such weight of a thread: its launch starts 0.1 us later, counted over 40 steps


@dataclass(frozen=True)
class BlockConfig(Form):
    """`units` are all, `blocks` is 1. units_per_thread: of each group of lanes. block_sequences: of a block.

    k_vector: adjacent elements of K that a lane reads at once. smem_vectors: a lane's vectors of each row of weights that are
    in shared memory. blocks_per_sm: blocks of a multiprocessor at once.
    """

    units_per_thread: int = 1
    block_sequences: int = 1
    k_vector: int = 1
    smem_vectors: int = 0
    blocks_per_sm: int = 1

    @property
    def kind(self) -> str:
        return "blocks"

    @property
    def tile_batch(self) -> int:
        return self.block_sequences

    @property
    def fragments_per_warp(self) -> int:
        """None: weights are single elements here."""
        return 0

    @property
    def _lanes_per_unit(self) -> int:
        return 1 if self._gates == 1 else 4

    @cached_property
    def k_lanes(self) -> int:
        """Lanes of a group, which have different elements of K."""
        return self.units_per_thread * self._lanes_per_unit

    @cached_property
    def threads(self) -> int:
        return ceil_div(ceil_div(self.units, self.units_per_thread) * self.k_lanes, _WARP) * _WARP

    @property
    def _k(self) -> int:
        """Elements of K: forward all units, backward all gates."""
        return self.units * (self._gates if self.problem.is_backward else 1)

    @cached_property
    def vectors_per_lane(self) -> int:
        """Vectors of K of a lane."""
        return ceil_div(self._k, self.k_lanes * self.k_vector)

    @property
    def rows_per_thread(self) -> int:
        """Rows of the product that a thread multiplies: forward its units' gates, backward its units."""
        return self.units_per_thread * (1 if self.problem.is_backward else self._gates)

    @cached_property
    def weights_per_thread(self) -> int:
        return self.rows_per_thread * self.vectors_per_lane * self.k_vector

    @cached_property
    def smem_weights_per_thread(self) -> int:
        return self.rows_per_thread * self.smem_vectors * self.k_vector

    @property
    def shuffles(self) -> int:
        """Shuffles by which a thread's sums of a sequence are added, backward."""
        return self.units_per_thread - 1 + self._lanes_per_unit.bit_length() - 1

    @cached_property
    def registers(self) -> int:
        """Registers that a thread needs, an estimate by compiling: without spills, though with fewer than it would take."""
        further, units = self.block_sequences - 1, self.units_per_thread * self._lanes_per_unit // 4
        others = 52 + 4 * units + 8 * (self._gates == 3) + (12 + 4 * units) * minimum(further, 3)
        if self.problem.is_backward:
            others = 76 + 32 * further
        others = others + (self.smem_vectors > 0) * where(self.k_vector == 4, 16, 8)
        return self.weights_per_thread - self.smem_weights_per_thread + others

    @property
    def _subpartition_warps(self) -> int:
        """A block's warps on a quarter of a multiprocessor, which has a quarter of the registers."""
        return ceil_div(self.threads, 4 * _WARP)

    @property
    def max_registers(self) -> int:
        """Registers that a thread may have; 0 where a block may not have so many threads."""
        most = _SUBPARTITION_REGISTERS // (self._subpartition_warps * _WARP)
        return where(self.threads > _MAX_THREADS, 0, minimum(_MAX_REGISTERS, most // 8 * 8))

    @property
    def max_blocks_per_sm(self) -> int:
        """Blocks whose registers a multiprocessor has."""
        return _SUBPARTITION_REGISTERS // (self._subpartition_warps * _WARP * ceil_div(self.registers, 8) * 8)

    @cached_property
    def shared_bytes(self) -> int:
        operands = 8 * self.block_sequences * self.vectors_per_lane * self.k_lanes * self.k_vector
        if self.problem.is_backward:
            staged = self._k * (self.units + 1) * self.problem.arithmetic.bytes  # W_hh, an element of padding in each row
            operands = maximum(operands, staged)
        return ceil_div(operands, 16) * 16 + 16 + 4 * self.smem_weights_per_thread * self.threads

    @cached_property
    def launch(self) -> Launch:
        return Launch(self.clusters, self.threads, self.shared_bytes)

    @property
    def macros(self) -> dict[str, int]:
        return {
            "TILES": 1,
            "UNITS_PER_THREAD": self.units_per_thread,
            "SEQUENCES": self.block_sequences,
            "K_VECTOR": self.k_vector,
            "SMEM_VECTORS": self.smem_vectors,
            "BLOCK_THREADS": self.threads,
            "BLOCKS_PER_SM": self.blocks_per_sm,
            "SHARED_BYTES": self.shared_bytes,
        }

    def __str__(self) -> str:
        return (
            f"blocks: {self.clusters} of {self.block_sequences} sequences each, with all weights, {self.threads} threads, "
            f"{self.units_per_thread} units a group of lanes"
        )

    @cached_property
    def product_us(self) -> float:
        """Estimated us to issue the products of all blocks of a multiprocessor."""
        is_backward = self.problem.is_backward
        clocks = _FMA_CLOCKS[is_backward] * self.weights_per_thread + (_SHUFFLE_CLOCKS * self.shuffles if is_backward else 0)
        clocks = clocks + _READ_CLOCKS[is_backward] * self.vectors_per_lane * (1 + self.k_vector)
        return self._issue_us(self.block_sequences * clocks + _SMEM_WEIGHT_CLOCKS[is_backward] * self.smem_weights_per_thread)

    @cached_property
    def step_us(self) -> float:
        """Estimated us of a step of the blocks that run at once."""
        is_backward = self.problem.is_backward
        pointwise_us = self._issue_us(_POINTWISE_CLOCKS[is_backward] * self.block_sequences * (self._gates > 1))
        waiting_us = _STEP_US[is_backward] + _SEQUENCE_US[is_backward] * (self.block_sequences - 1)
        return waiting_us + _SMEM_WEIGHT_US * self.smem_weights_per_thread + self.product_us + pointwise_us

    def _issue_us(self, clocks: float) -> float:
        """Estimated us of a sub-partition's warps, each of so many clocks."""
        return ceil_div(self.blocks_per_sm * self.threads, 4 * _WARP) * clocks * US_PER_CLOCK


def block_configs(problem: ProblemSize, device: Device) -> Iterator[Candidates[BlockConfig]]:
    """Yields the forms whose weights a block has room for, each of the best number of elements that a lane reads at once."""
    has_gates = GATES[problem.cell] > 1
    if problem.hidden > MAX_BLOCK_HIDDEN:
        return
    of_cell = (4,) if not has_gates else (2, 4) if problem.is_backward else (1, 2)
    units, sequences, k_vector = axes(of_cell, BLOCK_SEQUENCES, (4, 2, 1))
    form = BlockConfig(problem, problem.hidden, 1, 1, 1, units_per_thread=units, block_sequences=sequences, k_vector=k_vector)
    form, fits = _with_weights(form, device)
    clocks = np.where(fits, _lane_clocks(form), np.inf)
    is_best = np.arange(k_vector.size) == clocks.argmin(-1, keepdims=True)
    is_slow = (form.smem_vectors > 0) & (has_gates and problem.batch <= _FEW)
    form = replace(form, blocks_per_sm=_blocks_per_sm(form, device))
    yield Candidates(form, fits & is_best & ~is_slow & (sequences < 2 * problem.batch))


def _lane_clocks(form: BlockConfig) -> int:
    """Clocks of a thread's step: multiply-adds, reads, which count twice, and weights from shared memory, which take four."""
    return form.block_sequences * (form.weights_per_thread + 2 * form.vectors_per_lane) + 4 * form.smem_weights_per_thread


def _with_weights(form: BlockConfig, device: Device) -> tuple[BlockConfig, Any]:
    """The forms with as many weights in registers as there are, and the others in shared memory; and which have room there."""
    all_in_shared = replace(form, smem_vectors=form.vectors_per_lane)
    room = (form.max_registers - all_in_shared.registers) // (form.rows_per_thread * form.k_vector)  # vectors in registers
    is_short = form.registers > form.max_registers
    form = replace(form, smem_vectors=where(is_short, form.vectors_per_lane - maximum(0, room), 0))
    return form, ~(is_short & (room < 1)) & (form.shared_bytes <= device.shared_bytes)


def _blocks_per_sm(form: BlockConfig, device: Device) -> int:
    """Blocks of a multiprocessor at once, no more than there are."""
    of_shared = (device.shared_bytes + _RESERVED_BYTES) // (form.shared_bytes + _RESERVED_BYTES)
    fit = minimum(minimum(form.max_blocks_per_sm, of_shared), minimum(_SM_THREADS // form.threads, _SM_BLOCKS))
    return maximum(1, minimum(fit, ceil_div(form.clusters, device.num_sms)))
