"""Forms of grids that stream a part of W_hh: where it does not fit in the registers and shared memory of a whole chip.

All multiprocessors read at once, so blocks own as few units as there are multiprocessors for. Stages are as deep as is read
while states are exchanged: what is deeper would take the place of weights that stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, sqrt
from typing import TypeVar

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, ProblemSize
from pytest_ecornn.implementations.persistent_gpu.config import FRAGMENT_BYTES, PACKETS_IN_FLIGHT, TILE, WARPS, Form
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig

_STAGES = 6  # of a fragment each, 48 KiB, at least
_FEWEST_REGISTERS = -2  # that `max_reg_fragments` may say; one fragment is in registers then
_UNITS = 2  # of a block a multiple
_MORE_UNITS = 8  # than the fewest, at most
_MAX_N_TILES = 4
_TIMED_K_TILES = 18  # of one tile in TF32, at H 2048
_GRID_ROWS = (1, 2, 4, 8, 16, 32)  # blocks in a column, backward
F = TypeVar("F", bound=Form)
_L2_BYTES_PER_US = 4.8e6  # that all multiprocessors read together
_MEMORY_BYTES_PER_US = 3.0e6
_EXCHANGE_US = 2.0  # while blocks exchange states nothing but stages is read
_HIDDEN_PRODUCT = 0.4  # of a product's time that weights arrive in

_GEMM_LAUNCH_US = 4.0
# By the bytes of an element; 4: IEEE float32.
_GEMM_BYTES_PER_US = {2: 2.9e6, 4: 2.5e6}
_GEMM_PRODUCTS_PER_US = {2: 75e6, 4: 7.1e6}
# Elements of a product in float32, beyond which cuBLAS's rate grows as their root, and how far: no faster one was timed.
_SMALL_RESULT, _MOST_RATE_GAIN = 2.5e5, 3.2
_TF32_PRODUCTS_PER_US = 60e6
_TF32_IDLE_ROWS = 100  # sequences whose products take as long as reading W_hh
_UNALIGNED = 2.0  # where rows are no multiple of 16 bytes


def streaming_configs(problem: ProblemSize, device: Device) -> Iterator[Form]:
    """Yields the grid forms of one group that stream."""
    fewest = ceil(problem.hidden / device.num_sms / _UNITS) * _UNITS
    for units in range(fewest, fewest + _MORE_UNITS + 1, _UNITS):
        needed = ceil(problem.hidden / units)
        if problem.is_backward:
            yield from _backward_configs(problem, device, units, needed)
        else:
            yield from _forward_configs(problem, device, units, needed)


def _forward_configs(problem: ProblemSize, device: Device, units: int, blocks: int) -> Iterator[Form]:
    tiles = ceil(problem.batch / TILE)
    for partitions in (2, 4, 8):
        form = Form(problem, units, blocks, tiles, partitions, is_grid=True)
        yield from with_streamed_weights(form, device)
        has_readers = tiles == 1 and form.packets[0] <= 256 * PACKETS_IN_FLIGHT and not problem.arithmetic.is_3xtf32
        if has_readers and device.largest_cluster > 1:
            readers = replace(form, buffers=1, load_threads=256, reallocates_registers=True)
            yield from with_streamed_weights(readers, device)
    for abreast in range(1, min(tiles, _MAX_N_TILES) + 1):
        for sums in (2, 1):
            several = NTiledGridConfig(
                problem, units, blocks, ceil(tiles / abreast), WARPS, is_grid=True, n_tiles=abreast, sum_buffers=sums
            )
            if _is_slow_tf32(several):
                continue
            yield from with_streamed_weights(several, device)


def _is_slow_tf32(form: NTiledGridConfig) -> bool:
    """Whether one tile by packets takes longer than by states in shared memory: GRU H 2048 B 4 7.4 us a step for 6.3."""
    arithmetic = form.problem.arithmetic
    is_tf32 = arithmetic.exchanged_bytes < arithmetic.bytes
    return is_tf32 and form.n_tiles == 1 and form.k_tiles_per_warp <= _TIMED_K_TILES


def _backward_configs(problem: ProblemSize, device: Device, units: int, needed: int) -> Iterator[Form]:
    tiles = ceil(problem.batch / TILE)
    for down in _GRID_ROWS:
        blocks = ceil(needed / down) * down
        if blocks <= device.num_sms:
            for partitions in (1, 2, 4, 8):
                for n_tiles in {1, 2, min(tiles, 4)}:
                    if n_tiles <= tiles:
                        form = Form(problem, units, blocks, tiles, partitions, is_grid=True, grid_rows=down, n_tiles=n_tiles)
                        yield from with_streamed_weights(form, device)


def with_streamed_weights(form: F, device: Device) -> Iterator[F]:
    """Yields the form with as many whole passes in registers and shared memory as fit beside the stages, unless all do.

    What is left of shared memory are further stages.
    """
    each, fragments = form.m_tiles_per_pass, form.fragments_per_warp
    room = (device.shared_bytes - form.non_weight_smem_bytes) // FRAGMENT_BYTES - _STAGES
    most = max(1, form.max_reg_fragments)
    resident = (most + room) // each * each
    reg_fragments = min(most, resident)
    if form.max_reg_fragments >= _FEWEST_REGISTERS and room >= 0 < resident <= fragments - _STAGES:
        smem_fragments = resident - reg_fragments
        stages = min(_STAGES + room - smem_fragments, fragments - resident)
        yield replace(form, reg_fragments=reg_fragments, smem_fragments=smem_fragments, stream_stages=stages)


def stream_wait_us(form: Form, product_us: float) -> float:
    """Estimated us of a step in which a grid's tiles wait for weights. product_us: of a tile, with all weights there."""
    if not (form.is_grid and form.streamed_fragments):
        return 0.0
    fragment_bytes = FRAGMENT_BYTES * form.blocks
    near = form.l2_fragments * fragment_bytes
    stream_us = near / _L2_BYTES_PER_US + (form.stream_bytes - near) / _MEMORY_BYTES_PER_US
    stages = form.stream_stages * form.stage_fragments * fragment_bytes
    hidden_us = min(stages / _L2_BYTES_PER_US, _EXCHANGE_US)
    hidden_us += _HIDDEN_PRODUCT * product_us * form.tiles / form.products_per_step
    return form.products_per_step * max(0.0, stream_us - hidden_us)


def gemm_step_us(problem: ProblemSize) -> float:
    """Estimated us of a step by a GEMM, which reads all of W_hh, as cuDNN's standard algorithm takes."""
    arithmetic, weights = problem.arithmetic, GATES[problem.cell] * problem.hidden**2
    if arithmetic.bytes == 4 and not arithmetic.is_3xtf32:
        product_us = weights * (problem.batch + _TF32_IDLE_ROWS) / _TF32_PRODUCTS_PER_US
    else:
        products_per_us = _GEMM_PRODUCTS_PER_US[arithmetic.bytes]
        if arithmetic.is_3xtf32:
            results = problem.batch * GATES[problem.cell] * problem.hidden
            products_per_us *= min(_MOST_RATE_GAIN, sqrt(max(1, results / _SMALL_RESULT)))
        product_us = max(
            weights * arithmetic.bytes / _GEMM_BYTES_PER_US[arithmetic.bytes], problem.batch * weights / products_per_us
        )
    is_aligned = arithmetic.is_3xtf32 or problem.hidden * arithmetic.bytes % 16 == 0
    return _GEMM_LAUNCH_US + (1 if is_aligned else _UNALIGNED) * product_us
