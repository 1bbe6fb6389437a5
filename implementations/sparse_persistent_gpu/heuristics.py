"""Chooses the form of sparse_persistent_gpu: a pure function of a layer's sizes, its pattern and the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, ProblemSize
from pytest_ecornn.implementations.sparse_persistent_gpu.config import ALL, BLOCK_THREADS, SparseConfig, Techniques, pair_words
from pytest_ecornn.implementations.sparse_persistent_gpu.packing import (
    MAX_POSITIONS,
    Partition,
    balanced_permutation,
    counts_per_block,
    is_bank_scheduled,
    min_rounds,
    padded_turns,
)

_PACKETS_IN_FLIGHT = 8  # packets in flight of a thread that receives
_REGISTER_WORDS = 72  # that a thread has registers for, beside what it works with
_SPILL_FREE_WORDS = {2: 60, 4: 72}  # of which it need not put anything else aside, of so many bytes an element
_MOST_SEQUENCES = {2: 8, 4: 4}  # that 16 bytes have room for, of so many bytes an element
_CLUSTERS = (2, 4)  # sizes

# Where units lie in that order: elements of each segment of the columns in each row [cluster, rows].
SplitColumns = Callable[[NDArray[np.int32], Partition], NDArray[np.int64]]


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


def select_config(
    problem: ProblemSize,
    counts: NDArray[np.int64],
    device: Device,
    techniques: Techniques = ALL,
    divide: SplitColumns | None = None,
) -> SparseConfig | str:
    """The form that should take the least time, or why none fits. counts: of elements in each row of W_hh, backward of W_hh^T.

    A form fits where all its blocks run at once and keep all elements. Forms of clusters are compared as if rows were divided
    by chance, as those of a random pattern are; only of what then is the fastest it is asked how `divide` does it, if given.
    """
    found, least = None, inf

    def clocks(form: SparseConfig) -> float:
        return make_cost_model(form).clocks_on(device)

    for expected in sorted(_fitting(problem, counts, device, techniques), key=clocks):
        if clocks(expected) >= least:
            break
        form = _form(expected, counts, device, divide) if divide and expected.cluster > 1 else expected
        if form and clocks(form) < least:
            found, least = form, clocks(form)
    if found:
        return found
    elements, words = int(counts.sum()), pair_words(problem)
    exchanged = f"gradients of {GATES[problem.cell] * problem.hidden} gates" if problem.is_backward else "states"
    return (
        f"H {problem.hidden} with {elements:,} non-zeros does not fit: they, {2 * words} bytes each, and the "
        f"{exchanged} of a sequence must lie in {_REGISTER_WORDS} registers of each of {BLOCK_THREADS} "
        f"threads and the {device.shared_bytes} bytes of shared memory of each of {device.num_sms} multiprocessors"
    )


def _fitting(problem: ProblemSize, counts: NDArray[np.int64], device: Device, techniques: Techniques) -> Iterator[SparseConfig]:
    most, by_chance = _MOST_SEQUENCES[problem.arithmetic.bytes] if techniques.wide_reads else 1, _random_split(counts)
    for sequences in (some for some in (8, 4, 2, 1) if some <= most and some < 2 * problem.batch):
        tiles = ceil(problem.batch / sequences)
        for groups in sorted({ceil(tiles / each) for each in range(1, tiles + 1)}):
            for cluster in (1, *(_CLUSTERS if techniques.clusters and groups == tiles else ())):
                form = SparseConfig(problem, 1, sequences, groups, 2, 0, cluster=cluster, techniques=techniques)
                for units in _units(form, _processors(device, cluster) // groups):
                    found = _form(replace(form, units=units), counts, device, by_chance)
                    if found is not None:
                        yield found


def _processors(device: Device, cluster: int) -> int:
    """Multiprocessors that clusters of that size can fill at once."""
    if cluster > device.largest_cluster:
        return 0
    return device.num_sms if cluster <= 2 else device.clusters(cluster) * cluster  # multiprocessors are in pairs


def _random_split(counts: NDArray[np.int64]) -> SplitColumns:
    def divide(order: NDArray[np.int32], spread: Partition) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.random.default_rng(0).multinomial(counts, [1 / spread.cluster] * spread.cluster).T
        return found

    return divide


def _units(form: SparseConfig, processors: int) -> list[int]:
    """Candidate numbers of units per block where `processors` multiprocessors share all hidden units."""
    blocks = processors // form.cluster * form.cluster
    if blocks < 1:
        return []
    hidden, rows = form.problem.hidden, form.cluster * form.spread.gates
    fewest = ceil(hidden / blocks)
    return [units for units in sorted({fewest, fewest + 1, fewest + fewest % 2, ceil(fewest / 3) * 3, 2 * fewest})
            if units * rows <= BLOCK_THREADS and units < 2 * hidden]  # fmt: skip


def _form(form: SparseConfig, counts: NDArray[np.int64], device: Device, divide: SplitColumns) -> SparseConfig | None:
    """Completes a form for all its elements. None where they or 16-bit positions do not fit, or a cluster is not coupled."""
    problem, words = form.problem, pair_words(form.problem)
    if sum(form.spread.zeros(problem.hidden)) > MAX_POSITIONS:
        return None
    room, reg_pairs = form.room(device), _REGISTER_WORDS // words
    if room < 1 or counts.sum() > 2 * (room + reg_pairs) * BLOCK_THREADS * form.blocks:
        return None
    per_block = _counts_per_block(form, counts, divide)
    rounds, parts = _shares(form, per_block)
    form = replace(form, rounds=rounds, max_partials=parts)
    room = form.room(device)
    if room < 1 or rounds > 2 * (room + reg_pairs) or not _all_pairs_communicate(form, per_block):
        return None
    return replace(
        form,
        reg_pairs=min(rounds // 2, reg_pairs, max(_SPILL_FREE_WORDS[problem.arithmetic.bytes] // words, rounds // 2 - room)),
    )


def _all_pairs_communicate(form: SparseConfig, laid: NDArray[np.int64]) -> bool:
    """Whether every block of a cluster is sent something by every other, by which it knows how far that has come."""
    if form.cluster == 1 or not form.partials_per_row:
        return form.cluster == 1
    return int(laid.reshape(-1, form.cluster, form.spread.rows).sum(axis=2).min()) > 0


def _counts_per_block(form: SparseConfig, counts: NDArray[np.int64], divide: SplitColumns) -> NDArray[np.int64]:
    """Elements of each row that a block has."""
    hidden, spread = form.problem.hidden, form.spread
    permutation = balanced_permutation(counts.reshape(spread.gates, hidden).sum(axis=0), spread, form.techniques.balance)
    return counts_per_block(divide(permutation, spread) if form.cluster > 1 else counts, permutation, spread, hidden)


def _shares(form: SparseConfig, laid: NDArray[np.int64]) -> tuple[int, int]:
    """Turns, as `pack` finds them, and the most threads that share a row."""
    rounds = min_rounds(laid, BLOCK_THREADS)
    arranged = is_bank_scheduled(rounds, form.spread, form.techniques.bank_order)
    return padded_turns(rounds, arranged), form.cluster * ceil(int(laid.max(initial=1)) / rounds)


def expected_counts(problem: ProblemSize, density: float) -> NDArray[np.int64]:
    """Draws the elements per row, each present with probability `density`; the seed is fixed."""
    rows, columns = problem.hidden, GATES[problem.cell] * problem.hidden
    if not problem.is_backward:
        rows, columns = columns, rows
    return np.random.default_rng(0).binomial(columns, density, rows).astype(np.int64)


def capacity(problem: ProblemSize, density: float, device: Device, techniques: Techniques = ALL) -> int:
    """The largest H, `problem`'s own being disregarded, at which a random pattern of that density fits; 0 where none does."""
    fewest, most = 0, 1
    while _fits(problem._replace(hidden=most), density, device, techniques):
        fewest, most = most, 2 * most
    while most - fewest > 1:
        hidden = (fewest + most) // 2
        if _fits(problem._replace(hidden=hidden), density, device, techniques):
            fewest = hidden
        else:
            most = hidden
    return fewest


def _fits(problem: ProblemSize, density: float, device: Device, techniques: Techniques) -> bool:
    return next(_fitting(problem, expected_counts(problem, density), device, techniques), None) is not None
