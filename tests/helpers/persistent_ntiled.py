"""Forms of persistent_gpu with several tiles of sequences as one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_ecornn.implementations._common.recurrent_problem import Problem
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import Abreast
from pytest_ecornn.implementations.persistent_gpu.tiling import WARPS
from tests.helpers.persistent import with_weights


@dataclass(frozen=True)
class Forced(Abreast):
    """With as many packets in registers as it is given."""

    at_once: int = 2

    @property
    def parcels_at_once(self) -> int:
        return self.at_once


def form_of(problem: Problem, units: int, tiles: int, abreast: int, held: int, at_once: int, sums: int, twice: int = 0) -> Form:
    """Where products are split with so many parts in halves, or with all there are."""
    shape = {"is_grid": True, "abreast": abreast, "at_once": at_once, "sums": sums}
    form = Forced(problem, units, -(-problem.hidden // units), tiles, WARPS, **shape)
    return with_weights(replace(form, twice=min(twice, form.whole_parts) * problem.arithmetic.is_split), held, 0, 0)
