"""Chooses the form of persistent_gpu: of all that fit on the device the one whose steps take the least time.

All forms of a kind are compared at once: their sizes are arrays. The choice is remembered for all numbers of sequences that
forms and their times do not tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from math import sqrt
from typing import Any

import numpy as np

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, ProblemSize
from pytest_ecornn.implementations._common.sizes import axes, ceil_div, maximum, minimum, where
from pytest_ecornn.implementations.persistent_gpu.blocks.config import (
    BLOCK_SEQUENCES,
    MAX_BLOCK_HIDDEN,
    BlockConfig,
    block_configs,
)
from pytest_ecornn.implementations.persistent_gpu.config import (
    FRAGMENT_BYTES,
    PACKETS_IN_FLIGHT,
    REGISTERS,
    TILE,
    WARPS,
    Candidates,
    F,
    Form,
)
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.implementations.persistent_gpu.wgmma.config import MIN_WGMMA_BATCH, wgmma_configs

_MAX_TILES = 4
_STREAM_BYTES = 80 * 1024  # in flight from the L2 cache at least, in a cluster, to use its bandwidth
_GRID_UNITS, _NTILED_UNITS = 4, 2  # of a block a multiple
_MAX_N_TILES = 4
_SHARED_PACKETS = 6  # of a reader, beside other groups
_GRID_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 16)  # blocks in a column, backward
# Of grids that stream. Blocks own as few units as there are multiprocessors for, since all read at once.
_STAGES = 6  # of a fragment each, 48 KiB, at least: as deep as is read while states are exchanged
_FEWEST_REGISTERS = -2  # that `max_reg_fragments` may say; one fragment is in registers then
_MORE_UNITS = 8  # than the fewest, at most
_TIMED_K_TILES = 18  # of one tile in TF32, at H 2048
_STREAMING_ROWS = (1, 2, 4, 8, 16, 32)  # blocks in a column, backward
# A GEMM a step.
_GEMM_LAUNCH_US = 4.0
_GEMM_BYTES_PER_US, _GEMM_PRODUCTS_PER_US = {2: 2.9e6, 4: 2.5e6}, {2: 75e6, 4: 7.1e6}  # by an element's bytes, 4: IEEE float32
# Elements of a product in float32, beyond which cuBLAS's rate grows as their root, and how far: no faster one was timed.
_SMALL_RESULT, _MOST_RATE_GAIN = 2.5e5, 3.2
_TF32_PRODUCTS_PER_US = 60e6
_TF32_IDLE_ROWS = 100  # sequences whose products take as long as reading W_hh
_UNALIGNED = 2.0  # where rows are no multiple of 16 bytes
# Of a GEMM's time that a step may be estimated at. On compute capability 9.0 backward cuDNN takes longer than its GEMM, most of
# all with gates.
_MAX_GEMM_SHARE, _MAX_BACKWARD_SHARE, _MAX_GATED_BACKWARD_SHARE = 1.05, 1.4, 2.2
_MAX_UNMEASURED_SHARE = 1.2  # elsewhere


# The choice.


def select_config(problem: ProblemSize, device: Device, computes_inputs: bool = False) -> Form | str:
    """The form whose steps take the least time, with clusters that queue; or why there is none.

    computes_inputs: the same launch computes the input product, which blocks with all weights do not.
    """
    fastest = _fastest(alike_problem(problem, device), device, computes_inputs and problem.hidden <= MAX_BLOCK_HIDDEN)
    if fastest is None:
        return _does_not_fit_reason(problem, device)
    step_us, form = fastest
    return _slower_than_gemm_reason(form, step_us, problem, device) or replace(form, problem=problem)


@lru_cache(maxsize=4096)
def _fastest(problem: ProblemSize, device: Device, computes_inputs: bool) -> tuple[float, Form] | None:
    """The time of a step and the form that takes the least, of these the least for its product; None where none fits."""
    best, best_us = None, (np.inf, np.inf)
    for candidates in _candidates(problem, device):
        forms, fits = candidates.forms, candidates.fits
        if fits.any() and not (computes_inputs and isinstance(forms, BlockConfig)):
            step_us = np.where(fits, estimated_us_with_queueing(forms, device), np.inf)
            product_us = np.where(step_us == step_us.min(), forms.product_us, np.inf)
            number = int(product_us.argmin())
            if (us := (step_us.item(number), product_us.item(number))) < best_us:
                best, best_us = partial(candidates.at, number), us
    return None if best is None else (best_us[0], best())


def alike_problem(problem: ProblemSize, device: Device) -> ProblemSize:
    """The problem of most sequences with the same forms and times: of as many tiles, and below 8 as many that are published.

    Several tiles as one publish multiples of 4; wgmma has a least number of sequences. Blocks with all weights of small layers
    have sequences of their own.
    """
    batch = problem.batch
    multiples = [TILE if batch > TILE else 1 << (batch - 1).bit_length()]
    if TILE < batch < TILE * _MAX_N_TILES and not problem.is_backward:
        multiples.append(4)
    if batch < MIN_WGMMA_BATCH:
        multiples.append(MIN_WGMMA_BATCH - 1)
    if problem.hidden <= MAX_BLOCK_HIDDEN:
        multiples += [device.num_sms * sequences for sequences in BLOCK_SEQUENCES]
    return problem._replace(batch=min(ceil_div(batch, multiple) * multiple for multiple in multiples))


def candidate_configs(problem: ProblemSize, device: Device) -> list[Form]:
    """All forms that fit."""
    return [form for candidates in _candidates(problem, device) for form in candidates]


def _candidates(problem: ProblemSize, device: Device) -> Iterator[Candidates[Any]]:
    """Yields forms of each kind. Grids stream weights only where no grid has room for all of them."""
    yield from clusters(partial(Form, problem), problem, device)
    weight_bytes = GATES[problem.cell] * problem.hidden**2 * problem.arithmetic.bytes
    has_room = weight_bytes <= device.num_sms * (4 * REGISTERS + device.shared_bytes)
    grids: list[Candidates[Any]] = [*_grids(problem, device), *_ntiled_grids(problem, device)] if has_room else []
    yield from grids if any(candidates.fits.any() for candidates in grids) else streaming_grids(problem, device)
    yield from block_configs(problem, device)
    for alternatives in wgmma_configs(problem, device) if has_room else ():
        yield _first_that_fit(_resident(alternatives.forms, alternatives.fits, device))


def estimated_us_with_queueing(form: Form, device: Device) -> float:
    """Estimated us of a step, where clusters that do not run at once run one after the other."""
    return form.step_us if form.is_grid else ceil_div(form.clusters, _clusters_at_once(form, device)) * form.step_us


def _clusters_at_once(form: Form, device: Device) -> int:
    """Clusters that run at once, of blocks with all weights the blocks."""
    return device.num_sms * form.blocks_per_sm if isinstance(form, BlockConfig) else device.clusters(form.blocks)


def fits_both_directions(form: Form, device: Device) -> bool:
    """Whether another direction's clusters run at the same time. Not a grid's, which may need the whole device."""
    return not form.is_grid and 2 * form.clusters <= _clusters_at_once(form, device)


def _slower_than_gemm_reason(form: Form, step_us: float, problem: ProblemSize, device: Device) -> str | None:
    """Why a GEMM a step is estimated to be faster than the form, or None.

    Asked of grids on compute capability 9.0, elsewhere of forms that stream weights.
    """
    is_measured = device.largest_cluster > 1
    if not form.streamed_fragments and not (form.is_grid and is_measured):
        return None
    gemm_us = gemm_step_us(problem)
    if step_us <= (_max_gemm_share(problem) if is_measured else _MAX_UNMEASURED_SHARE) * gemm_us:
        return None
    step = "a step backward" if problem.is_backward else "a step"
    if form.streamed_fragments:
        step = f"W_hh does not fit on chip, and {step} that streams the rest"
    return (
        f"H {problem.hidden} at B {problem.batch} is faster by a GEMM a step: {step} takes an estimated {step_us:.1f} us, by a "
        f"GEMM {gemm_us:.1f} us"
    )


def _max_gemm_share(problem: ProblemSize) -> float:
    if not problem.is_backward:
        return _MAX_GEMM_SHARE
    return _MAX_BACKWARD_SHARE if GATES[problem.cell] == 1 else _MAX_GATED_BACKWARD_SHARE


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


def _does_not_fit_reason(problem: ProblemSize, device: Device) -> str:
    sizes = f"H {problem.hidden} does not fit{' backward' * problem.is_backward}: "
    if device.largest_cluster > 1:
        return (
            f"{sizes}the states of {TILE} sequences must lie in the {device.shared_bytes} bytes of shared memory of each "
            f"block of a cluster of {device.largest_cluster}"
        )
    what = "gradients" if problem.is_backward else "states"
    return (
        f"{sizes}a part of W_hh of {GATES[problem.cell]} x {problem.hidden} x {problem.hidden} elements of "
        f"{problem.arithmetic.bytes} bytes and the {what} of {problem.batch} sequences must lie in the registers and the "
        f"{device.shared_bytes} bytes of shared memory of each of {device.num_sms} multiprocessors"
    )


# Kinds of forms.


def clusters(
    make: Callable[..., F], problem: ProblemSize, device: Device, most_tiles: int = _MAX_TILES
) -> Iterator[Candidates[F]]:
    """Yields forms of clusters. make: of units, blocks, tiles and K partitions."""
    if device.largest_cluster == 1:
        return
    piece = 16 if problem.is_backward else 16 // problem.arithmetic.bytes  # units that are published at once
    fewest = ceil_div(problem.hidden, device.largest_cluster * piece) * piece
    of_units = range(fewest, max(fewest, 64) + 1, piece)
    of_tiles = range(1, min(most_tiles, ceil_div(problem.batch, TILE)) + 1)
    units, tiles, k_partitions = axes(of_units, of_tiles, (1,) if problem.is_backward else (1, 2, 4, 8))
    blocks = maximum(2 if problem.is_backward else 1, ceil_div(problem.hidden, units))  # one alone may not send to itself
    yield _resident_or_ring(make(units, blocks, tiles, k_partitions), device)


def _grids(problem: ProblemSize, device: Device) -> Iterator[Candidates[Form]]:
    """Yields grids of as many groups as run at once, without load warps and with each number of their threads.

    Load threads are 256 where registers have room for what each reads. Others were never faster: with split float32, in TF32 of
    several tiles, 128 of TF32, and 256 of several groups that read much: LSTM H 1536 B 16 took 4.35 us a step for 3.71 by 128.
    """
    fewest = _fewest_units(problem, device, _GRID_UNITS)
    of_units = range(fewest, max(fewest, 64) + 1, _GRID_UNITS)
    units, rows, k_partitions = axes(of_units, _GRID_ROWS if problem.is_backward else (1,), (1, 2, 4, 8))
    needed = ceil_div(problem.hidden, units)
    blocks = ceil_div(needed, rows) * rows
    tiles = ceil_div(problem.batch, TILE * maximum(1, device.num_sms // blocks))
    form = Form(problem, units, blocks, tiles, k_partitions, is_grid=True, grid_rows=rows)
    yield _resident(form, (rows <= needed) & (blocks <= device.num_sms), device)
    if problem.is_backward or problem.arithmetic.is_3xtf32:
        return
    loading = replace(form, buffers=minimum(tiles, 2), load_threads=128, reallocates_registers=device.largest_cluster > 1)
    if problem.arithmetic.bytes == 2:
        yield _resident(loading, True, device)
    have_room = form.packets[0] <= 256 * where(form.clusters == 1, PACKETS_IN_FLIGHT, _SHARED_PACKETS)
    yield _resident(replace(loading, load_threads=256), have_room & (tiles == 1), device)


def _fewest_units(problem: ProblemSize, device: Device, multiple: int) -> int:
    """Units of a block, as few as there are multiprocessors for."""
    return ceil_div(problem.hidden, device.num_sms * multiple) * multiple


def _ntiled_grids(problem: ProblemSize, device: Device) -> Iterator[Candidates[NTiledGridConfig]]:
    """Yields forward forms of several tiles as one. Sums have two buffers where they fit. Float32 is also split in halves."""
    if problem.is_backward:
        return
    fewest = _fewest_units(problem, device, _NTILED_UNITS)
    of_units = range(fewest, max(fewest, 32) + 1, _NTILED_UNITS)
    units, n_tiles, sum_buffers = axes(of_units, range(1, _MAX_N_TILES + 1), (2, 1))
    blocks = ceil_div(problem.hidden, units)
    tiles = ceil_div(problem.batch, TILE * maximum(1, device.num_sms // blocks))
    is_possible = n_tiles <= tiles
    form = NTiledGridConfig(
        problem, units, blocks, ceil_div(tiles, n_tiles), WARPS, is_grid=True, n_tiles=n_tiles, sum_buffers=sum_buffers
    )
    yield _first_that_fit(_resident(form, is_possible, device))
    if problem.arithmetic.is_3xtf32:
        form = replace(form, presplit_fragments=1)
        most = minimum(form.fragments, form.max_reg_fragments + _free_smem_fragments(form, device) - form.fragments)
        yield _resident(replace(form, presplit_fragments=most), is_possible & (most > 0), device)


def streaming_grids(problem: ProblemSize, device: Device) -> Iterator[Candidates[Any]]:
    """Yields grids of one group that stream."""
    fewest = _fewest_units(problem, device, _NTILED_UNITS)
    of_units, tiles = range(fewest, fewest + _MORE_UNITS + 1, _NTILED_UNITS), ceil_div(problem.batch, TILE)
    if problem.is_backward:
        of_n_tiles = [n_tiles for n_tiles in sorted({1, 2, min(tiles, 4)}) if n_tiles <= tiles]
        units, rows, k_partitions, n_tiles = axes(of_units, _STREAMING_ROWS, (1, 2, 4, 8), of_n_tiles)
        blocks = ceil_div(problem.hidden, units * rows) * rows
        form = Form(problem, units, blocks, tiles, k_partitions, is_grid=True, grid_rows=rows, n_tiles=n_tiles)
        yield _streaming(form, blocks <= device.num_sms, device)
        return
    units, k_partitions = axes(of_units, (2, 4, 8))
    blocks = ceil_div(problem.hidden, units)
    form = Form(problem, units, blocks, tiles, k_partitions, is_grid=True)
    yield _streaming(form, True, device)
    if tiles == 1 and not problem.arithmetic.is_3xtf32 and device.largest_cluster > 1:
        loading = replace(form, buffers=1, load_threads=256, reallocates_registers=True)
        yield _streaming(loading, form.packets[0] <= 256 * PACKETS_IN_FLIGHT, device)
    units, n_tiles, sum_buffers = axes(of_units, range(1, min(tiles, _MAX_N_TILES) + 1), (2, 1))
    blocks = ceil_div(problem.hidden, units)
    several = NTiledGridConfig(
        problem, units, blocks, ceil_div(tiles, n_tiles), WARPS, is_grid=True, n_tiles=n_tiles, sum_buffers=sum_buffers
    )
    # One tile in TF32 takes longer than by states in shared memory: GRU H 2048 B 4 7.4 us a step for 6.3.
    is_tf32 = problem.arithmetic.exchanged_bytes < problem.arithmetic.bytes
    is_slow = is_tf32 & (n_tiles == 1) & (several.k_tiles_per_warp <= _TIMED_K_TILES)
    yield _streaming(several, ~is_slow, device)


# Where the weights lie.


def _free_smem_fragments(form: Form, device: Device) -> int:
    """Fragments that shared memory has room for."""
    return (device.shared_bytes - form.non_weight_smem_bytes) // FRAGMENT_BYTES


def _resident(form: F, is_possible: Any, device: Device) -> Candidates[F]:
    """The forms with `preferred_reg_fragments` in registers, others in shared memory, then more in registers."""
    fragments, room, preferred = form.fragments_per_warp, _free_smem_fragments(form, device), form.preferred_reg_fragments
    in_registers = minimum(fragments, preferred)
    left = fragments - in_registers - room
    further = form.allowed_spilled_fragments + form.max_reg_fragments - preferred
    reg_fragments = in_registers + where(left <= further, maximum(0, left), 0)
    smem_fragments = fragments - reg_fragments
    fits = (in_registers > 0) & (maximum(1, smem_fragments) <= room)  # there is room for one even where there is none
    return Candidates(form.with_weights(reg_fragments, smem_fragments, 0), fits & is_possible)


def _first_that_fit(alternatives: Candidates[F]) -> Candidates[F]:
    """The first form that fits of each row along the last axis."""
    fits = alternatives.fits
    return Candidates(alternatives.forms, fits & (fits.cumsum(-1) == 1))


def _resident_or_ring(form: F, device: Device) -> Candidates[F]:
    """The forms as `_resident` has them; where weights find no room, with what a ring of stages leaves of it."""
    resident = _resident(form, True, device)
    fragments, room, each = form.fragments_per_warp, _free_smem_fragments(form, device), form.m_tiles_per_pass
    is_resident = resident.forms.smem_fragments <= room
    in_registers = minimum(fragments, form.preferred_reg_fragments)
    near = (in_registers + room) // each  # passes, and of these the ring's
    stages = minimum(minimum(ceil_div(_STREAM_BYTES // FRAGMENT_BYTES, each), room // each), near - 1)
    beside_ring = (near - stages) * each
    reg_fragments = where(is_resident, resident.forms.reg_fragments, minimum(in_registers, beside_ring))
    smem_fragments = where(is_resident, fragments, beside_ring) - reg_fragments
    placed = form.with_weights(reg_fragments, smem_fragments, where(is_resident, 0, stages))
    return Candidates(placed, resident.fits | (~is_resident & (in_registers > 0) & (stages > 0)))


def _streaming(form: F, is_possible: Any, device: Device) -> Candidates[F]:
    """The forms with as many whole passes in registers and shared memory as fit beside the stages, unless all do.

    What is left of shared memory are further stages.
    """
    each, fragments, room = form.m_tiles_per_pass, form.fragments_per_warp, _free_smem_fragments(form, device) - _STAGES
    most = maximum(1, form.max_reg_fragments)
    resident = (most + room) // each * each
    reg_fragments = minimum(most, resident)
    smem_fragments = resident - reg_fragments
    stages = minimum(_STAGES + room - smem_fragments, fragments - resident)
    fits = (form.max_reg_fragments >= _FEWEST_REGISTERS) & (room >= 0) & (resident > 0) & (resident <= fragments - _STAGES)
    return Candidates(form.with_weights(reg_fragments, smem_fragments, stages), fits & is_possible)
