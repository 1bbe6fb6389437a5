"""Forms of grids that stream a part of W_hh: where it does not fit in the registers and shared memory of a whole chip.

All multiprocessors read at once, so blocks own as few units as there are multiprocessors for. Stages are as deep as is read
while states are exchanged: what is deeper would take the place of weights that stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import TypeVar

from pytest_ecornn.implementations._common.recurrent_problem import Device, ProblemSize
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.implementations.persistent_gpu.tiling import FRAGMENT_BYTES, PACKETS_IN_FLIGHT, TILE, WARPS

_STAGES = 6  # of a fragment each, 48 KiB, at least
_FEWEST_REGISTERS = -2  # that `max_reg_fragments` may say; one fragment is in registers then
_UNITS = 2  # of a block a multiple
_MORE_UNITS = 8  # than the fewest, at most
_MAX_N_TILES = 4
_TIMED_K_TILES = 18  # of one tile in TF32, at H 2048
_GRID_ROWS = (1, 2, 4, 8, 16, 32)  # blocks in a column, backward
F = TypeVar("F", bound=Form)


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
