"""Chooses the form of persistent_gpu: of all that fit on the device the one whose steps take the least time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from math import ceil
from typing import TypeVar

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, ProblemSize
from pytest_ecornn.implementations.persistent_gpu.blocks.config import BlockConfig, block_configs
from pytest_ecornn.implementations.persistent_gpu.config import FRAGMENT_BYTES, PACKETS_IN_FLIGHT, TILE, WARPS, Form
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.implementations.persistent_gpu.cost_model import make_cost_model
from pytest_ecornn.implementations.persistent_gpu.streaming.configs import gemm_step_us, streaming_configs
from pytest_ecornn.implementations.persistent_gpu.wgmma.config import wgmma_configs

_MAX_TILES = 4
# Of a GEMM's time that a step may be estimated at. On compute capability 9.0 backward cuDNN takes longer than its GEMM, most of
# all with gates.
_MAX_GEMM_SHARE, _MAX_BACKWARD_SHARE, _MAX_GATED_BACKWARD_SHARE = 1.05, 1.4, 2.2
_MAX_UNMEASURED_SHARE = 1.2  # elsewhere
_STREAM_BYTES = 80 * 1024  # in flight from the L2 cache at least, to use its bandwidth
_GRID_UNITS, _ABREAST_UNITS = 4, 2  # of a block a multiple
_MAX_N_TILES = 4
_SHARED_PACKETS = 6  # of a reader, beside other groups
F = TypeVar("F", bound=Form)
_GRID_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 16)  # blocks in a column, backward


def select_config(problem: ProblemSize, device: Device, computes_inputs: bool = False) -> Form | str:
    """The form whose steps take the least time, with clusters that queue; or why there is none.

    computes_inputs: the same launch computes the input product, which blocks with all weights do not.
    """
    found = [one for one in candidate_configs(problem, device) if not (computes_inputs and isinstance(one, BlockConfig))]
    if not found:
        return _does_not_fit_reason(problem, device)

    best = min(found, key=lambda form: (estimated_us_with_queueing(form, device), make_cost_model(form).product_us))
    return _slower_than_gemm_reason(best, device) or best


def candidate_configs(problem: ProblemSize, device: Device) -> list[Form]:
    """All forms that fit. Grids stream weights only where no grid has room for all of them."""
    grids = [*_grid_configs(problem, device), *_ntiled_configs(problem, device)]
    grids = grids or list(streaming_configs(problem, device))
    wide = chain.from_iterable(_first_resident(forms, device) for forms in wgmma_configs(problem, device))
    return [*clusters(partial(Form, problem), problem, device), *grids, *block_configs(problem, device), *wide]


def estimated_us_with_queueing(form: Form, device: Device) -> float:
    """Estimated us of a step, where clusters that do not run at once run one after the other."""
    step_us = make_cost_model(form).step_us
    return step_us if form.is_grid else ceil(form.clusters / _clusters_at_once(form, device)) * step_us


def _clusters_at_once(form: Form, device: Device) -> int:
    """Clusters that run at once, of blocks with all weights the blocks."""
    return device.num_sms * form.blocks_per_sm if isinstance(form, BlockConfig) else device.clusters(form.blocks)


def fits_both_directions(form: Form, device: Device) -> bool:
    """Whether another direction's clusters run at the same time. Not a grid's, which may need the whole device."""
    return not form.is_grid and 2 * form.clusters <= _clusters_at_once(form, device)


def _slower_than_gemm_reason(form: Form, device: Device) -> str | None:
    """Why a GEMM a step is estimated to be faster than the form, or None.

    Asked of grids on compute capability 9.0, elsewhere of forms that stream weights.
    """
    problem, is_measured = form.problem, device.largest_cluster > 1
    if not form.streamed_fragments and not (form.is_grid and is_measured):
        return None
    step_us, gemm_us = estimated_us_with_queueing(form, device), gemm_step_us(problem)
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


def clusters(
    make: Callable[[int, int, int, int], F], problem: ProblemSize, device: Device, most_tiles: int = _MAX_TILES
) -> Iterator[F]:
    """Yields the cluster forms that fit. make: of units, blocks, tiles and groups."""
    if device.largest_cluster == 1:
        return
    piece = 16 if problem.is_backward else 16 // problem.arithmetic.bytes  # units that are published at once
    fewest = ceil(problem.hidden / device.largest_cluster / piece) * piece
    for units in range(fewest, max(fewest, 64) + 1, piece):
        blocks = max(2 if problem.is_backward else 1, ceil(problem.hidden / units))  # one alone may not send to itself
        for tiles in range(1, min(most_tiles, ceil(problem.batch / TILE)) + 1):
            for groups in (1,) if problem.is_backward else (1, 2, 4, 8):
                form = _with_weights(make(units, blocks, tiles, groups), device)
                if form is not None:
                    yield form


def _grid_configs(problem: ProblemSize, device: Device) -> Iterator[Form]:
    """Yields the grid forms that fit: as many groups as run at once, no weights streamed."""
    fewest = ceil(problem.hidden / device.num_sms / _GRID_UNITS) * _GRID_UNITS
    for units in range(fewest, max(fewest, 64) + 1, _GRID_UNITS):
        needed = ceil(problem.hidden / units)
        for down in [down for down in _GRID_ROWS if down <= needed] if problem.is_backward else (1,):
            blocks = ceil(needed / down) * down
            if blocks > device.num_sms:
                continue
            tiles = ceil(problem.batch / TILE / (device.num_sms // blocks))
            for groups in (1, 2, 4, 8):
                form = Form(problem, units, blocks, tiles, groups, is_grid=True, grid_rows=down)
                yield from _with_all_weights_resident(form, device)
                for load_threads in _load_threads(form):
                    moves = device.largest_cluster > 1
                    yield from _with_all_weights_resident(
                        replace(form, buffers=min(tiles, 2), load_threads=load_threads, reallocates_registers=moves), device
                    )


def _load_threads(form: Form) -> tuple[int, ...]:
    """Numbers of threads that the load warps may have: 256 where registers have room for what each reads.

    Others were never faster: with split float32, in TF32 of several tiles, 128 of TF32, and 256 of several groups that read
    much: LSTM H 1536 B 16 took 4.35 us a step for 3.71 by 128.
    """
    arithmetic = form.problem.arithmetic
    if form.problem.is_backward or arithmetic.is_3xtf32:
        return ()
    is_many = form.tiles == 1 and form.packets[0] <= 256 * (PACKETS_IN_FLIGHT if form.clusters == 1 else _SHARED_PACKETS)
    return (128,) * (arithmetic.bytes == 2) + (256,) * is_many


def _with_all_weights_resident(form: F, device: Device) -> Iterator[F]:
    """Yields the form with its weights placed, unless some would be streamed."""
    found = _with_weights(form, device)
    if found is not None and not found.streamed_fragments:
        yield found


def _first_resident(forms: Iterable[F], device: Device) -> Iterator[F]:
    """Yields the first form, with its weights placed, of which none would be streamed, if there is one."""
    return islice(chain.from_iterable(_with_all_weights_resident(form, device) for form in forms), 1)


def _ntiled_configs(problem: ProblemSize, device: Device) -> Iterator[Form]:
    """Yields forward forms of several tiles as one. Sums have two buffers where they fit. Float32 is also split in halves."""
    if problem.is_backward:
        return
    fewest = ceil(problem.hidden / device.num_sms / _ABREAST_UNITS) * _ABREAST_UNITS
    for units in range(fewest, max(fewest, 32) + 1, _ABREAST_UNITS):
        blocks = ceil(problem.hidden / units)
        tiles = ceil(problem.batch / TILE / (device.num_sms // blocks)) if blocks <= device.num_sms else 0
        for abreast in range(1, min(tiles, _MAX_N_TILES) + 1):
            form = NTiledGridConfig(problem, units, blocks, ceil(tiles / abreast), WARPS, is_grid=True, n_tiles=abreast)
            several = [replace(form, sum_buffers=sums) for sums in (2, 1)]
            yield from _first_resident(several, device)
            if problem.arithmetic.is_3xtf32:
                yield from chain.from_iterable(_with_presplit_weights(one, device) for one in several)


def _with_presplit_weights(form: NTiledGridConfig, device: Device) -> Iterator[NTiledGridConfig]:
    """Yields the form with as many fragments split once as fit, if any do."""
    form = replace(form, presplit_fragments=1)
    presplit_fragments = min(form.fragments, form.max_reg_fragments + _room(form, device) - form.fragments)
    if presplit_fragments > 0:
        yield from _with_all_weights_resident(replace(form, presplit_fragments=presplit_fragments), device)


def _room(form: Form, device: Device) -> int:
    """Fragments that shared memory has room for."""
    return (device.shared_bytes - form.non_weight_smem_bytes) // FRAGMENT_BYTES


def _with_weights(form: F, device: Device) -> F | None:
    """The form with `preferred_reg_fragments` in registers, others in shared memory, then more in registers. None: no room."""
    fragments = form.fragments_per_warp
    reg_fragments, room = min(fragments, form.preferred_reg_fragments), _room(form, device)
    if reg_fragments < 1:
        return None
    further = form.allowed_spilled_fragments + form.max_reg_fragments - form.preferred_reg_fragments
    if room < fragments - reg_fragments <= room + further:
        reg_fragments = fragments - room
    if fragments - reg_fragments <= room:
        found = replace(form, reg_fragments=reg_fragments, smem_fragments=fragments - reg_fragments)
        return found if found.shared_bytes <= device.shared_bytes else None  # there is room for one even where there is none
    near = (reg_fragments + room) // form.m_tiles_per_pass  # passes, and of these the ring's
    stages = min(ceil(_STREAM_BYTES / FRAGMENT_BYTES / form.m_tiles_per_pass), room // form.m_tiles_per_pass, near - 1)
    resident = (near - stages) * form.m_tiles_per_pass
    reg_fragments = min(reg_fragments, resident)
    return (
        replace(form, reg_fragments=reg_fragments, smem_fragments=resident - reg_fragments, stream_stages=stages)
        if stages > 0
        else None
    )
