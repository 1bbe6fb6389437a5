"""Forms of persistent_gpu with several tiles of sequences as one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_ecornn.implementations._common.recurrent_problem import ProblemSize
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.implementations.persistent_gpu.tiling import WARPS
from tests.helpers.persistent import with_weights


@dataclass(frozen=True)
class Forced(NTiledGridConfig):
    """With as many packets in registers as it is given."""

    at_once: int = 2

    @property
    def packets_in_registers(self) -> int:
        return self.at_once


def form_of(
    problem: ProblemSize,
    units: int,
    tiles: int,
    n_tiles: int,
    reg_fragments: int,
    at_once: int,
    sum_buffers: int,
    presplit: int = 0,
) -> Form:
    """A form; where products are split, with so many presplit fragments, or as many as there are."""
    shape = {"is_grid": True, "n_tiles": n_tiles, "at_once": at_once, "sum_buffers": sum_buffers}
    form = Forced(problem, units, -(-problem.hidden // units), tiles, WARPS, **shape)
    presplit = min(presplit, form.fragments) * problem.arithmetic.is_3xtf32
    return with_weights(replace(form, presplit_fragments=presplit), reg_fragments, 0, 0)
