"""Lists the forms of small layers: a block with all weights to each few sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, ProblemSize
from pytest_ecornn.implementations.persistent_gpu.blocks.config import BlockConfig

_MAX_HIDDEN = 200  # of RNN, for which they were measured; of the others fewer find room
_FEW = 64  # sequences, up to which clusters take less time than weights in shared memory, of cells with gates
_SEQUENCES = (1, 2, 3, 4, 6, 8)  # of a block
_SM_THREADS, _SM_BLOCKS = 2048, 32  # of a multiprocessor at once
_RESERVED_BYTES = 1024  # of shared memory, of each block


def block_configs(problem: ProblemSize, device: Device) -> Iterator[BlockConfig]:
    """Yields the forms whose weights a block has room for, each of the best number of elements that a lane reads at once."""
    has_gates = GATES[problem.cell] > 1
    if problem.hidden > _MAX_HIDDEN:
        return
    for units in (4,) if not has_gates else (2, 4) if problem.is_backward else (1, 2):
        for sequences in _SEQUENCES:
            form = BlockConfig(problem, problem.hidden, 1, 1, 1, units_per_thread=units, block_sequences=sequences)
            placed = [_with_weights(replace(form, k_vector=some), device) for some in (4, 2, 1)]
            best = min(filter(None, placed), key=_lane_clocks, default=None)
            is_slow = best and best.smem_vectors and has_gates and problem.batch <= _FEW
            if best and not is_slow and sequences < 2 * problem.batch:
                yield replace(best, blocks_per_sm=_blocks_per_sm(best, device))


def _lane_clocks(form: BlockConfig) -> int:
    """Clocks of a thread's step: multiply-adds, reads, which count twice, and weights from shared memory, which take four."""
    return form.block_sequences * (form.weights_per_thread + 2 * form.vectors_per_lane) + 4 * form.smem_weights_per_thread


def _with_weights(form: BlockConfig, device: Device) -> BlockConfig | None:
    """The form with as many weights in registers as there are, and the others in shared memory; None where that has no room."""
    if form.registers > form.max_registers:
        all_in_shared = replace(form, smem_vectors=form.vectors_per_lane)
        room = (form.max_registers - all_in_shared.registers) // (form.rows_per_thread * form.k_vector)  # vectors in registers
        if room < 1:
            return None
        form = replace(form, smem_vectors=form.vectors_per_lane - room)
    return form if form.shared_bytes <= device.shared_bytes else None


def _blocks_per_sm(form: BlockConfig, device: Device) -> int:
    """Blocks of a multiprocessor at once, no more than there are."""
    of_shared = (device.shared_bytes + _RESERVED_BYTES) // (form.shared_bytes + _RESERVED_BYTES)
    fit = min(form.max_blocks_per_sm, of_shared, _SM_THREADS // form.threads, _SM_BLOCKS)
    return min(fit, ceil(form.clusters / device.num_sms))
