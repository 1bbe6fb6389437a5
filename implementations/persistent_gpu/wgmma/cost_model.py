"""The cost model of persistent_gpu's forms for many sequences, by wgmma: how long a step by one takes.

Its coefficients are fitted to 75 steps forward and 24 training steps by such forms on an H100. Those of 16 bits backward and
the factors are fitted to 29 passes beside other forms. Source: docs/notes/persistent_gpu.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_ecornn.implementations._common.recurrent_problem import GATES
from pytest_ecornn.implementations.persistent_gpu.cost_coefficients import H200
from pytest_ecornn.implementations.persistent_gpu.wgmma.config import WgmmaBackwardConfig, WgmmaConfig

_WARPGROUPS = 2  # that multiply
_WGMMAS_PER_FRAGMENT = 2
_KIB = 1024
# Of the estimate, so that it compares with other forms'. In 16 bits it is too low forward in more groups than _FEW_GROUPS.
_FACTOR, _FACTOR_16_BITS = 1.1, 0.95
_FEW_GROUPS = 2


@dataclass(frozen=True, kw_only=True)
class WgmmaCoefficients:
    """The time of each role in a pass, of which the longest counts, and of what all passes take.

    wgmma_clocks: a multiprocessor's, of 64 rows, 8 columns and 32 bytes of K. least_wgmma_clocks: of any number of columns.
    chunk_us: to load a chunk of each partition, over the stages. read_us: in addition each KiB that a block loads. pass_us:
    each pass. exchange_us: from a pass to its next step, beside the pass. tile_us: of the pointwise warps, a tile. state_us:
    each state of a thread in it. gate_us: backward each gate of a state. source_us: each source of its sums. block_chunk_us:
    each chunk that a block loads in a step, though other roles take longer.
    """

    wgmma_clocks: float = 7.4
    least_wgmma_clocks: float = 23
    chunk_us: float = 0.656
    read_us: float = 0.009
    pass_us: float
    exchange_us: float
    tile_us: float
    state_us: float = 0
    gate_us: float = 0
    source_us: float = 0
    block_chunk_us: float = 0


FORWARD = WgmmaCoefficients(pass_us=0.95, exchange_us=3.4, tile_us=0.286, state_us=0.109)
BACKWARD = WgmmaCoefficients(pass_us=0.63, exchange_us=3.4, tile_us=0.644, gate_us=0.287, source_us=0.0057)
BACKWARD_16_BITS = replace(BACKWARD, source_us=0.012, block_chunk_us=0.03)


@dataclass(frozen=True)
class WgmmaCostModel:
    """Estimates the times of a form's product and step."""

    form: WgmmaConfig

    @property
    def coefficients(self) -> WgmmaCoefficients:
        problem = self.form.problem
        if not problem.is_backward:
            return FORWARD
        return BACKWARD_16_BITS if problem.arithmetic.bytes == 2 else BACKWARD

    @property
    def product_us(self) -> float:
        """Estimated us of a pass's product."""
        form, of_wgmma = self.form, self.coefficients
        each = max(of_wgmma.wgmma_clocks * form.n_tiles, of_wgmma.least_wgmma_clocks)
        products = 3 if form.problem.arithmetic.is_3xtf32 else 1
        clocks = form.fragments * _WGMMAS_PER_FRAGMENT * _WARPGROUPS * products * each
        return clocks * H200.chip.us_per_clock

    @property
    def step_us(self) -> float:
        """Estimated us of a step of all tiles: of all passes, or from one step of a tile to the next."""
        pass_us = self.coefficients.pass_us + max(self.product_us, self._loads_us, self._pointwise_us)
        step_us = max(self.form.tiles * pass_us, pass_us + self.coefficients.exchange_us)
        return self._factor * step_us + self.coefficients.block_chunk_us * self.form.block_chunks

    @property
    def _factor(self) -> float:
        problem = self.form.problem
        has_few_groups = problem.is_backward or self.form.clusters <= _FEW_GROUPS
        return _FACTOR_16_BITS if problem.arithmetic.bytes == 2 and has_few_groups else _FACTOR

    @property
    def _loads_us(self) -> float:
        """Estimated us to load what a pass multiplies."""
        form, of_wgmma = self.form, self.coefficients
        chunks_us = form.k_chunks * of_wgmma.chunk_us / form.stages
        return chunks_us + form.block_chunks * form.chunk_bytes / _KIB * of_wgmma.read_us

    @property
    def _pointwise_us(self) -> float:
        """Estimated us of the pointwise warps in a pass."""
        form, of_wgmma = self.form, self.coefficients
        state_us = of_wgmma.state_us + of_wgmma.gate_us * GATES[form.problem.cell]
        if isinstance(form, WgmmaBackwardConfig):
            state_us += of_wgmma.source_us * form.sources
        return form.wide / form.pointwise_batch * (of_wgmma.tile_us + state_us * form.states_per_thread)
