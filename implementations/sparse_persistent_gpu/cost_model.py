"""The cost model of sparse_persistent_gpu: how long a step by a form takes on an H200, by which forms are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device
from pytest_ecornn.implementations.sparse_persistent_gpu.config import BLOCK_THREADS, SparseConfig, pair_words
from pytest_ecornn.implementations.sparse_persistent_gpu.packing import is_bank_scheduled

_PACKETS_IN_FLIGHT = 8  # packets in flight of a thread that receives


@dataclass(frozen=True, kw_only=True)
class CostCoefficients:
    """Coefficients of a step, in clocks of a multiprocessor unless said.

    They were fitted by hand to 125 forms of 18 problems on an NVIDIA H200 (docs/notes/sparse_persistent_gpu.md, "The model of
    time"); no script repeats the fit, and the runs are not kept.

    tile_clocks: from tile to tile. single_tile_clocks: in addition where there is no other tile. gate_clocks: each gate of a
    thread's state. scheduled_reads, unscheduled_reads: reads of shared memory that a round takes, by the number of bank groups,
    of elements in an order with few bank conflicts and of others. sequence_instructions, element_instructions: instructions of
    an element for each sequence, and once, by its bytes. smem_pair_instructions: in addition of two elements in shared memory.
    single_tile_exchange_bytes_per_clock, exchange_bytes_per_clock: bytes of states that a block receives in a clock, of a tile
    that is alone and of several, which travel while others are multiplied. round_clocks: each round beyond a receiver thread's
    first packets in flight. send_clocks, send_sequence_clocks: sending partial sums to the other blocks of a cluster, and of
    each sequence. full_device_slowdown: the factor of a step that leaves less than `min_idle_sms` multiprocessors idle.
    """

    tile_clocks: float
    single_tile_clocks: float
    gate_clocks: float
    scheduled_reads: Mapping[int, float]
    unscheduled_reads: Mapping[int, float]
    sequence_instructions: Mapping[int, float]
    element_instructions: Mapping[int, float]
    smem_pair_instructions: float
    single_tile_exchange_bytes_per_clock: float
    exchange_bytes_per_clock: float
    round_clocks: float
    send_clocks: float
    send_sequence_clocks: float
    full_device_slowdown: float
    min_idle_sms: int


H200 = CostCoefficients(
    tile_clocks=830,
    single_tile_clocks=500,
    gate_clocks=110,
    scheduled_reads={8: 1.02, 16: 1.04, 32: 1.02},
    unscheduled_reads={8: 2.0, 16: 2.4, 32: 2.5},
    sequence_instructions={2: 2.8, 4: 1.3},
    element_instructions={2: 2.2, 4: 3},
    smem_pair_instructions=5,
    single_tile_exchange_bytes_per_clock=32,
    exchange_bytes_per_clock=45,
    round_clocks=1230,
    send_clocks=800,
    send_sequence_clocks=200,
    full_device_slowdown=1.1,
    min_idle_sms=4,
)


@dataclass(frozen=True)
class CostModel:
    """Estimates the clocks of a form's step."""

    form: SparseConfig
    coefficients: CostCoefficients

    @property
    def step_clocks(self) -> float:
        """About how long a step of all tiles takes."""
        form, cost, is_alone = self.form, self.coefficients, self.form.tiles == 1
        each = cost.tile_clocks + max(self._smem_clocks, self._issue_clocks) + self._exchange_clocks
        each += form.states_per_thread * GATES[form.problem.cell] * cost.gate_clocks
        sent = (form.cluster - 1) / form.cluster * (cost.send_clocks + cost.send_sequence_clocks * form.sequences)
        return form.tiles * each + cost.single_tile_clocks * is_alone + sent

    def clocks_on(self, device: Device) -> float:
        """About how long a step takes on a device, whose last multiprocessors slow it down."""
        is_full = self.form.launch.grid > device.num_sms - self.coefficients.min_idle_sms
        return self.step_clocks * (self.coefficients.full_device_slowdown if is_full else 1)

    @property
    def _smem_clocks(self) -> float:
        """Reads of shared memory, of a tile."""
        form, cost = self.form, self.coefficients
        is_scheduled = is_bank_scheduled(form.rounds, form.spread, form.techniques.bank_order)
        of_turn = (cost.scheduled_reads if is_scheduled else cost.unscheduled_reads)[form.spread.bank_groups]
        reads = form.rounds * max(4, form.wide_bytes) / 4 * of_turn
        return BLOCK_THREADS / 32 * (reads + form.smem_pairs * pair_words(form.problem) * (1 if form.tiles == 1 else 2))

    @property
    def _issue_clocks(self) -> float:
        """Instructions of a tile's products."""
        form, cost, size = self.form, self.coefficients, self.form.problem.arithmetic.bytes
        of_element = cost.sequence_instructions[size] * form.sequences + cost.element_instructions[size]
        return BLOCK_THREADS / 128 * (form.rounds * of_element + cost.smem_pair_instructions * form.smem_pairs)

    @property
    def _exchange_clocks(self) -> float:
        """Packets that a block receives, of a tile."""
        form, cost = self.form, self.coefficients
        packets, receivers = form.blocks // form.cluster * form.packets, BLOCK_THREADS - form.pointwise_threads
        rounds = ceil(packets / receivers / _PACKETS_IN_FLIGHT) - 1
        rate = cost.single_tile_exchange_bytes_per_clock if form.tiles == 1 else cost.exchange_bytes_per_clock
        return 16 * packets / rate + rounds * cost.round_clocks


def make_cost_model(form: SparseConfig) -> CostModel:
    """The cost model of a form, on an H200."""
    return CostModel(form, H200)
