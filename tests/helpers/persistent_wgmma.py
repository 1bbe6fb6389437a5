"""Forms of persistent_gpu for many sequences, by wgmma."""

from __future__ import annotations

from pytest_ecornn.implementations._common.recurrent_problem import ProblemSize
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.wgmma.config import WgmmaBackwardConfig, WgmmaForwardConfig
from tests.helpers.persistent import with_weights


def form_of(problem: ProblemSize, units: int, tiles: int, reg_fragments: int, **sizes: int) -> Form:
    """A form of groups of `tiles` tiles. sizes: as WgmmaForwardConfig's."""
    cluster = sizes["cluster"]
    blocks = -(-problem.hidden // (units * cluster)) * cluster
    form = WgmmaForwardConfig(problem, units, blocks, tiles, sizes.pop("k_partitions"), is_grid=True, **sizes)
    return with_weights(form, reg_fragments, 0, 0)


def backward_form_of(problem: ProblemSize, units: int, grid_rows: int, tiles: int, reg_fragments: int, **sizes: int) -> Form:
    """A form backward of groups of `tiles` tiles, in `grid_rows` rows of blocks. sizes: as WgmmaBackwardConfig's."""
    blocks = -(-problem.hidden // units // grid_rows) * grid_rows
    form = WgmmaBackwardConfig(
        problem, units, blocks, tiles, sizes.pop("k_partitions"), is_grid=True, grid_rows=grid_rows, **sizes
    )
    return with_weights(form, reg_fragments, 0, 0)
