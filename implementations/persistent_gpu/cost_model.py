"""The cost model of persistent_gpu: how long a step by a form takes on an H200, by which forms are compared."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from pytest_ecornn.implementations._common.recurrent_problem import GATES
from pytest_ecornn.implementations.persistent_gpu import cost_coefficients
from pytest_ecornn.implementations.persistent_gpu.blocks.config import BlockConfig
from pytest_ecornn.implementations.persistent_gpu.config import (
    FRAGMENT_BYTES,
    K_TILE_BYTES,
    PACKETS_IN_FLIGHT,
    THREADS,
    TILE,
    WARPS,
    Form,
)
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.implementations.persistent_gpu.config_wavefront import WavefrontConfig
from pytest_ecornn.implementations.persistent_gpu.cost_coefficients import H200, BlockCoefficients, CostCoefficients
from pytest_ecornn.implementations.persistent_gpu.streaming.configs import stream_wait_us
from pytest_ecornn.implementations.persistent_gpu.wgmma.config import WgmmaBackwardConfig, WgmmaConfig

_SUBPARTITIONS = 4  # of a multiprocessor
_LINE_BYTES = 128  # of which each takes `line_us`
_WARPGROUPS = 2  # that multiply by wgmma
_WGMMAS_PER_FRAGMENT = 2
_KIB = 1024
# Of the estimate by wgmma, as other forms' is. In 16 bits it is too low forward in more groups than _FEW_GROUPS.
_WGMMA_FACTOR, _WGMMA_FACTOR_16_BITS = 1.1, 0.95
_FEW_GROUPS = 2


@dataclass(frozen=True)
class CostModel:
    """Estimates the times of a form's product and step."""

    form: Form
    coefficients: CostCoefficients

    @property
    def product_us(self) -> float:
        """Estimated us of a tile's product."""
        form, chip, product = self.form, self.coefficients.chip, self.coefficients.product
        arithmetic, is_backward = form.problem.arithmetic, form.problem.is_backward
        each = arithmetic.products
        is_one_tile = form.is_grid and form.tiles == 1 and not is_backward
        loss = product.one_tile_grid_read_loss if is_one_tile else product.issue_loss
        products = max(
            form.fragments_per_warp * WARPS / _SUBPARTITIONS * each * chip.mma_clocks,
            form.all_slices * each * chip.dependent_mma_clocks,
        )
        reads = WARPS * form.fragments_per_warp // form.m_tiles_per_pass * TILE * K_TILE_BYTES + FRAGMENT_BYTES * (
            form.fragments_per_warp - form.reg_fragments
        )
        split = WARPS / _SUBPARTITIONS * (
            form.fragments_per_warp * chip.split_fragment_clocks + form.all_slices * chip.split_k_tile_clocks
        )  # fmt: skip
        left = 0.0 if form.is_grid else form.streamed_fragments * FRAGMENT_BYTES / chip.l2_bytes_per_clock
        is_full = arithmetic.is_3xtf32 and not is_backward
        spilled = is_full * max(0, form.m_tiles_per_warp - product.unspilled_m_tiles) * product.spilled_m_tile_clocks
        split *= arithmetic.is_3xtf32
        busy = max(product.issue_loss * products, loss * reads / chip.smem_bytes_per_clock, split, left)
        return (busy + spilled) * chip.us_per_clock

    @property
    def step_us(self) -> float:
        """Estimated us of a step of all tiles, by which forms are compared."""
        if not self.form.is_grid:
            return self._cluster_us
        if self.form.is_2d_grid:
            resident_us = self._grid_backward_us
        else:
            resident_us = self._load_warp_grid_us if self.form.load_threads else self._grid_us
        return resident_us + stream_wait_us(self.form, self.product_us)

    @property
    def _publishing_us(self) -> float:
        """Estimated us for a cluster's block to publish a tile."""
        cluster = self.coefficients.cluster
        line_us = cluster.line_us * self.form.exchanged_bytes / _LINE_BYTES
        return self.form.blocks * (cluster.block_us + line_us)

    def _one_tile_us(self, states_us: float) -> float:
        """Estimated us between a tile's steps, in a cluster. states_us: to compute its states once all sums are there."""
        return self.product_us + states_us + self._publishing_us + self.coefficients.cluster.exchange_us

    @property
    def _cluster_us(self) -> float:
        """Estimated us of a step in a cluster: from one step of a tile to the next, or of all tiles one after the other."""
        form, cluster = self.form, self.coefficients.cluster
        state_us = cluster.state_us * form.states_per_thread
        one = self._one_tile_us(state_us + cluster.k_partition_us * form.k_partitions)
        if form.tiles == 1:
            return one
        if form.problem.is_backward:
            product = 1.0 if form.problem.arithmetic.is_3xtf32 else cluster.backward_product_factor
            return form.tiles * (cluster.backward_tile_us + product * self.product_us)
        has_gates, is_small = GATES[form.problem.cell] > 1, form.problem.hidden <= cluster.split_multi_tile_hidden
        state_us += cluster.split_multi_tile_us * (form.problem.arithmetic.is_3xtf32 and has_gates and is_small)
        return max(cluster.multi_tile_slowdown * form.tiles * max(self.product_us, state_us + self._publishing_us), one)

    @property
    def _grid_us(self) -> float:
        """Estimated us of a step forward in a grid without load warps."""
        form, grid = self.form, self.coefficients.grid
        packet = grid.packet_us + grid.straddling_packet_us * self._packets_straddle
        each = self._packets_per_thread(THREADS)
        reads = packet * self._unpacking_factor * each + grid.round_us * (ceil(each / PACKETS_IN_FLIGHT) - 1)
        state_us = grid.state_us * form.states_per_thread + grid.m_tile_sums_us * max(
            0, form.m_tiles_per_warp - grid.free_m_tiles
        )
        return form.tiles * (grid.tile_us + state_us + grid.product_factor * self.product_us + reads)

    @property
    def _load_warp_grid_us(self) -> float:
        """Estimated us of a step forward in a grid with load warps."""
        form, grid = self.form, self.coefficients.load_warp_grid
        tile = grid.one_tile[form.load_threads, form.problem.arithmetic.bytes] if form.tiles == 1 else grid.several_tiles
        each = self._packets_per_thread(form.load_threads)
        rounds = ceil(each / (2 * PACKETS_IN_FLIGHT))
        reads = (tile.packet_us + tile.straddling_packet_us * self._packets_straddle) * each + grid.round_us * (rounds - 1)
        state_us = tile.m_tile_sums_us * form.m_tiles_per_warp + grid.state_us * (form.states_per_thread - 1)
        return form.tiles * (tile.tile_us + tile.product_factor * self.product_us + reads + state_us)

    @property
    def _grid_backward_us(self) -> float:
        """Estimated us of a step backward in a grid."""
        form, grid = self.form, self.coefficients.grid_backward
        gradients, sums_us = (ceil(packets / THREADS) for packets in form.packets)
        reads = grid.gradient_packet_us * self._unpacking_factor * gradients + grid.sum_packet_us * sums_us
        reads += grid.straddling_us * (self._unpacking_factor > 1 and self._packets_straddle)
        return grid.step_us + form.tiles * (grid.tile_us + grid.product_factor * self.product_us + reads)

    @property
    def _unpacking_factor(self) -> int:
        """Words that a packet's word becomes once unpacked: 2 of TF32, which is packed."""
        return self.form.problem.arithmetic.bytes // self.form.problem.arithmetic.exchanged_bytes

    @property
    def _packets_straddle(self) -> bool:
        """Whether a packet may hold two sequences' values, which takes longer where it is not all float32."""
        form, arithmetic = self.form, self.form.problem.arithmetic
        values = GATES[form.problem.cell] * form.units if form.is_2d_grid else form.units
        words = values * arithmetic.bytes // 4
        return not arithmetic.is_3xtf32 and words % (3 * self._unpacking_factor) > 0

    def _packets_per_thread(self, threads: int) -> int:
        return ceil(self.form.packets[0] / threads)


@dataclass(frozen=True)
class NTiledCostModel(CostModel):
    """Estimates the times of a grid's form of several N tiles as one."""

    form: NTiledGridConfig

    @property
    def product_us(self) -> float:
        form, chip, n_tiled = self.form, self.coefficients.chip, self.coefficients.n_tiled
        products = 2 * form.fragments * form.n_tiles * form.problem.arithmetic.products * chip.mma_clocks
        near = (form.fragments_per_warp - form.reg_fragments) * FRAGMENT_BYTES / chip.smem_bytes_per_clock
        if not form.problem.arithmetic.is_3xtf32:
            return (n_tiled.product_factor * products + n_tiled.smem_factor * near) * chip.us_per_clock
        weights = n_tiled.splitting_factor * 2 * chip.split_fragment_clocks
        sequences = n_tiled.splitting_factor * 2 * chip.split_k_tile_clocks
        if form.presplit_fragments:
            split = (
                form.fragments - form.presplit_fragments
            ) * weights + form.k_tiles_per_warp * n_tiled.presplit_k_tile_clocks
            return max(n_tiled.presplit_product_factor * products + split, near) * chip.us_per_clock
        splitting = (
            n_tiled.split_product_factor * products
            + form.fragments * weights
            + form.k_tiles_per_warp * form.n_tiles * sequences
        )
        return splitting * chip.us_per_clock

    @property
    def step_us(self) -> float:
        form, chip, n_tiled = self.form, self.coefficients.chip, self.coefficients.n_tiled
        is_3xtf32 = form.problem.arithmetic.is_3xtf32
        step = n_tiled.split_step_us if is_3xtf32 else n_tiled.step_us
        state = n_tiled.split_state_us if is_3xtf32 else n_tiled.state_us
        read_factor = n_tiled.split_l2_read_factor if is_3xtf32 else n_tiled.l2_read_factor
        reads = read_factor * 16 * form.packets[0] / chip.l2_bytes_per_clock * chip.us_per_clock
        sums_us = n_tiled.m_tile_sums_us * form.n_tiles * form.m_tiles_per_warp + state * form.n_tiles * (
            form.states_per_thread - 1
        )
        tile_us = step + self.product_us + reads + sums_us + n_tiled.barrier_us * (form.sum_buffers == 1)
        return form.tiles * tile_us + stream_wait_us(form, self.product_us)


@dataclass(frozen=True)
class BlockCostModel(CostModel):
    """Estimates the times of blocks with all weights in registers."""

    form: BlockConfig

    @property
    def _pass(self) -> BlockCoefficients:
        return self.coefficients.block_backward if self.form.problem.is_backward else self.coefficients.block

    @property
    def product_us(self) -> float:
        """Estimated us to issue the products of all blocks of a multiprocessor."""
        form, block = self.form, self._pass
        of_sequence = block.fma_clocks * form.weights_per_thread + block.shuffle_clocks * form.shuffles
        of_sequence += block.read_clocks * form.vectors_per_lane * (1 + form.k_vector)
        return self._issue_us(form.block_sequences * of_sequence + block.smem_weight_clocks * form.smem_weights_per_thread)

    @property
    def step_us(self) -> float:
        """Estimated us of a step of the blocks that run at once."""
        form, block = self.form, self._pass
        pointwise = block.pointwise_clocks * form.block_sequences * (GATES[form.problem.cell] > 1)
        waiting = (
            block.step_us + block.sequence_us * (form.block_sequences - 1) + block.smem_weight_us * form.smem_weights_per_thread
        )
        return waiting + self.product_us + self._issue_us(pointwise)

    def _issue_us(self, clocks: float) -> float:
        """Estimated us of a sub-partition's warps, each of so many clocks."""
        warps = ceil(self.form.blocks_per_sm * self.form.threads / 32 / _SUBPARTITIONS)
        return warps * clocks * self.coefficients.chip.us_per_clock


@dataclass(frozen=True)
class WgmmaCostModel:
    """Estimates the times of the product and step of a form for many sequences, by wgmma."""

    form: WgmmaConfig

    @property
    def coefficients(self) -> cost_coefficients.WgmmaCoefficients:
        problem = self.form.problem
        if not problem.is_backward:
            return cost_coefficients.WGMMA_FORWARD
        is_16_bits = problem.arithmetic.bytes == 2
        return cost_coefficients.WGMMA_BACKWARD_16_BITS if is_16_bits else cost_coefficients.WGMMA_BACKWARD

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
        return _WGMMA_FACTOR_16_BITS if problem.arithmetic.bytes == 2 and has_few_groups else _WGMMA_FACTOR

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


@dataclass(frozen=True)
class WavefrontCostModel(CostModel):
    """Estimates the times of layers in a wavefront."""

    form: WavefrontConfig

    def _one_tile_us(self, states_us: float) -> float:
        """Estimated us between a tile's steps: inputs are multiplied while states are computed and published."""
        of_inputs = self.product_us * self.form.input_slices / self.form.all_slices
        return max(self.product_us, super()._one_tile_us(states_us) - of_inputs)

    def all_us(self, steps: int) -> float:
        """Estimated us of `steps` steps of all layers."""
        wavefront = self.coefficients.wavefront
        lags = (self.form.layers - 1) * wavefront.layer_lag_us
        return wavefront.launch_us + steps * wavefront.step_slowdown * self.step_us + lags


def make_cost_model(form: Form) -> CostModel | WgmmaCostModel:
    """The cost model of a form by its class, on an H200."""
    if isinstance(form, WgmmaConfig):
        return WgmmaCostModel(form)
    if isinstance(form, WavefrontConfig):
        return WavefrontCostModel(form, H200)
    if isinstance(form, NTiledGridConfig):
        return NTiledCostModel(form, H200)
    if isinstance(form, BlockConfig):
        return BlockCostModel(form, H200)
    return CostModel(form, H200)
