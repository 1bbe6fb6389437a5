"""Forms of persistent_gpu for many sequences, by wgmma, that might fit on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, ProblemSize
from pytest_ecornn.implementations.persistent_gpu.config import TILE
from pytest_ecornn.implementations.persistent_gpu.wgmma.config import WgmmaBackwardConfig, WgmmaConfig, WgmmaForwardConfig

_MIN_BATCH = 24
_N_TILES = (2, 4, 6, 8)
_MAX_GROUPS = 16
_ROWS = (64, 128, 256)  # that fill M tiles of one warpgroup or two
_MORE_UNITS = 2  # than there must be, backward
_MAX_M_TILES = 2  # of a warpgroup
_MAX_STATES = 2  # of a pointwise thread at once
_BUFFERS = ((2, 4), (2, 3), (1, 4))  # of sums, stages of each partition


def wgmma_configs(problem: ProblemSize, device: Device) -> Iterator[Sequence[WgmmaConfig]]:
    """Yields forms without their weights' places: alternatives, of which the first that fits is best."""
    if device.largest_cluster == 1 or problem.batch < _MIN_BATCH:
        return
    for groups in range(1, min(_MAX_GROUPS, problem.batch // TILE) + 1):
        blocks = device.num_sms // groups
        yield from _backward(problem, blocks, groups) if problem.is_backward else _forward(problem, blocks, groups)


def _forward(problem: ProblemSize, blocks: int, groups: int) -> Iterator[Sequence[WgmmaConfig]]:
    for cluster in (1, 2):
        fewest = ceil(problem.hidden / max(1, blocks // cluster * cluster))
        of_rows = [rows // (GATES[problem.cell] * cluster) for rows in _ROWS]
        for units in sorted({fewest, *(units for units in of_rows if fewest < units <= 2 * fewest)}):
            own = ceil(problem.hidden / (units * cluster)) * cluster
            if own <= blocks:
                form = WgmmaForwardConfig(problem, units, own, 1, 1, is_grid=True, cluster=cluster)
                yield from _tilings(form, groups)


def _backward(problem: ProblemSize, blocks: int, groups: int) -> Iterator[Sequence[WgmmaConfig]]:
    fewest = ceil(problem.hidden / blocks)
    for units in range(fewest, fewest + _MORE_UNITS + 1):
        needed = ceil(problem.hidden / units)
        for cols in sorted({min(needed, rows // units) for rows in _ROWS} - {0}):
            grid_rows = ceil(needed / cols)
            if grid_rows * cols <= blocks:
                form = WgmmaBackwardConfig(problem, units, grid_rows * cols, 1, 1, is_grid=True, grid_rows=grid_rows)
                yield from _tilings(form, groups)


def _tilings(form: WgmmaConfig, groups: int) -> Iterator[Sequence[WgmmaConfig]]:
    """Yields the form with several sizes of tiles, each with several numbers of buffers.

    Warpgroups divide the columns where one of them has room for all rows. Chunks are small where large ones have more padding.
    """
    sequences, pointwise_batch = ceil(form.problem.batch / groups), 16 if form.units <= _MAX_STATES * 8 else 8
    form = replace(form, k_partitions=2 if form.block_rows <= _ROWS[0] else 1, pointwise_batch=pointwise_batch)
    form = min((replace(form, chunk_fragments=fragments) for fragments in (2, 1)), key=lambda one: one.fragments)
    if form.m_tiles_per_pass > _MAX_M_TILES or form.states_per_thread > _MAX_STATES:
        return
    for n_tiles in _N_TILES:
        found = replace(form, tiles=ceil(sequences / (TILE * n_tiles)), n_tiles=n_tiles)
        if found.clusters == groups:
            yield [replace(found, sum_buffers=sum_buffers, stages=stages) for sum_buffers, stages in _BUFFERS]
