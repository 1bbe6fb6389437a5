"""A pruned weight's non-zeros in the order in which the threads of a grid's blocks keep them: pure, on the host.

Each block owns some hidden units, whose rows' elements its threads share: as many threads to a row as make the longest
thread's list as short as can be. In every turn each thread multiplies one of its elements by what it reads from shared memory;
of threads that read at once each is to read from other banks, so that they have rows of their own, of which chance does not
favour the same columns, and their rounds are scheduled together. Source: Zhu et al., Sparse Persistent RNNs, ICLR 2018.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from pytest_ecornn.implementations.sparse_persistent_gpu.csr import PADDING, CsrPattern, offsets_from_counts

MAX_POSITIONS = np.iinfo(np.uint16).max + 1  # that 16 bits tell apart
_MIN_GAIN = 1.1  # in the most elements of a block, for which units leave their order, in which they are read together
_SPARE_TURNS, _LONG = 1, 100  # with so many more, where there are not many, reads can be arranged so that few collide


@dataclass(frozen=True)
class Partition:
    """How a weight [G*H, K*H] lies in blocks of `units` hidden units and `threads` threads, of G `gates`, K `told` of each.

    Forward it is W_hh, K being 1; backward its transpose [H, G*H]. classes: of banks that so many threads, which read at once,
    can all read without waiting for each other; `together` columns beside each other are of one class, then come the next's.
    cluster: so many blocks beside each other share their rows, of which each has the elements of one segment of the columns.
    """

    gates: int
    units: int
    threads: int
    bank_groups: int = 8
    bank_width: int = 1
    told: int = 1
    cluster: int = 1

    def __post_init__(self) -> None:
        if self.shared_rows > self.threads:
            raise ValueError(f"a block of {self.units} units has {self.shared_rows} rows, more than its {self.threads} threads")
        if self.threads % self.bank_groups:
            raise ValueError(f"{self.threads} threads are no multiple of the {self.bank_groups} that read at once")

    @property
    def rows(self) -> int:
        """Rows of a block's own units; a unit's gates are adjacent."""
        return self.gates * self.units

    @property
    def shared_rows(self) -> int:
        """Rows of which a block has elements: those of each block of its cluster, one block after another."""
        return self.cluster * self.rows

    def blocks(self, hidden: int) -> int:
        """Whole clusters of them."""
        return ceil(hidden / self.units / self.cluster) * self.cluster

    def segment(self, hidden: int) -> int:
        """Positions that a block reads, K of each unit: all, or in a cluster the rank-th so many."""
        return self.blocks(hidden) // self.cluster * self.units * self.told

    def zeros(self, hidden: int) -> tuple[int, int]:
        """The first position beyond all that a block reads of the first class, and how many: there 0 lies, of each class."""
        span = self.bank_groups * self.bank_width
        return ceil(self.segment(hidden) / span) * span, span


@dataclass(frozen=True, eq=False)
class PackedEll:
    """Sums of a row are made by threads whose slots are beside each other.

    order: [blocks * units] int32, the hidden unit at each place, NONE where there is none; columns are positions, K of each
    place beside each other, in a cluster from its block's segment on, or, where there is nothing to multiply, beyond all of
    them (`Partition.zeros`). row_offsets: [blocks, shared rows + 1] int32, the first slot of each row.
    slots: [blocks, threads] int32.
    col_indices: [blocks, rounds, threads] uint16. sources: likewise, int32, the element of the pattern, PADDING for a product
    with 0. The number of rounds is even.
    """

    spread: Partition
    nonzeros: CsrPattern
    unit_permutation: NDArray[np.int32]
    row_offsets: NDArray[np.int32]
    slots: NDArray[np.int32]
    col_indices: NDArray[np.uint16]
    sources: NDArray[np.int32]

    @property
    def num_rounds(self) -> int:
        return int(self.sources.shape[1])


def pack(nonzeros: CsrPattern, spread: Partition, is_balanced: bool = True, is_bank_aware: bool = True) -> PackedEll:
    """is_balanced: units change places where blocks would be uneven. is_bank_aware: so do elements (`is_arranged`).

    Without either all lies in the order of units and columns. Raises ValueError for a shape that is not [G*H, K*H].
    """
    from pytest_ecornn.implementations.sparse_persistent_gpu.bank_scheduling import deal, schedule_conflict_free

    rows, columns_of = nonzeros.shape
    hidden = columns_of // spread.told
    is_other = rows != spread.gates * hidden or columns_of != spread.told * hidden
    if is_other or sum(spread.zeros(hidden)) > MAX_POSITIONS:
        raise ValueError(
            f"expected [G*H, K*H] of {spread.gates} gates and some 65,000 columns at most, K {spread.told}, "
            f"got {list(nonzeros.shape)}"
        )
    permutation = balanced_permutation(nonzeros.counts.reshape(spread.gates, hidden).sum(axis=0), spread, is_balanced)
    divided, at, origins = _split_columns(nonzeros, permutation, spread)
    own_rows = _rows_of_blocks(permutation, spread, hidden)
    counts = counts_per_block(np.diff(divided), permutation, spread, hidden)
    rounds = min_rounds(counts, spread.threads)
    shares = -(-counts // rounds)
    row_offsets = np.pad(np.cumsum(shares, axis=1), ((0, 0), (1, 0))).astype(np.int32)
    arranged = is_bank_scheduled(rounds, spread, is_bank_aware)
    shape = len(row_offsets), padded_turns(rounds, arranged), spread.threads
    zeros, _ = spread.zeros(hidden)
    bank_groups = (np.arange(zeros) // spread.bank_width % (spread.bank_groups if arranged else 1)).astype(np.uint8)
    col_indices, sources = np.full(shape, zeros, np.uint16), np.full(shape, PADDING, np.int32)
    in_order = np.arange(spread.threads, dtype=np.int32)
    slots = np.stack([_slots(share, spread.threads) if arranged else in_order for share in shares])
    for own, firsts, own_slots, *packed in zip(own_rows, row_offsets, slots, col_indices, sources, strict=True):
        deal(divided, at, own, firsts, np.argsort(own_slots), bank_groups, *packed)
        if arranged:
            schedule_conflict_free(bank_groups, spread.bank_groups, spread.bank_width, zeros, *packed)
    if origins is not None:
        sources = np.append(origins, PADDING)[sources]  # of NONE the last
    return PackedEll(spread, nonzeros, permutation, row_offsets, slots, col_indices, sources)


def divided_counts(nonzeros: CsrPattern, order: NDArray[np.int32], spread: Partition) -> NDArray[np.int64]:
    """[cluster, G*H]: elements of each segment in each row, where units lie in that order."""
    return np.diff(_split_columns(nonzeros, order, spread)[0]).reshape(spread.cluster, -1)


def _split_columns(
    nonzeros: CsrPattern, order: NDArray[np.int32], spread: Partition
) -> tuple[NDArray[np.int64], NDArray[np.uint16], NDArray[np.int32] | None]:
    """Rows cut into segments, the first of all rows and then the next: where each begins, and where its elements' positions
    within a segment are; and which each is in the pattern, None where they are as there.
    """
    hidden = nonzeros.shape[1] // spread.told
    place = np.empty(hidden, np.int64)
    place[order[order != PADDING]] = np.flatnonzero(order != PADDING)
    segment, at = np.divmod((place * spread.told + np.arange(spread.told).reshape(-1, 1)).ravel(), spread.segment(hidden))
    at = at.astype(np.uint16)[nonzeros.col_indices]
    if spread.cluster == 1:
        return nonzeros.row_offsets, at, None
    own = [np.flatnonzero((segment == k)[nonzeros.col_indices]) for k in range(spread.cluster)]
    counts = [np.diff(np.searchsorted(one, nonzeros.row_offsets)) for one in own]
    origins = np.concatenate(own).astype(np.int32)
    return offsets_from_counts(np.concatenate(counts)), at[origins], origins


def balanced_permutation(counts: NDArray[np.int64], spread: Partition, is_balanced: bool) -> NDArray[np.int32]:
    """[blocks * units] int32: the hidden unit at each position, NONE beyond the last. counts: of their elements [H]."""
    blocks, units = spread.blocks(len(counts)), spread.units
    plain = np.append(np.arange(len(counts)), np.full(blocks * units - len(counts), PADDING)).astype(np.int32)

    def largest(order: NDArray[np.int32]) -> int:  # of the blocks' loads
        return int(np.append(counts, 0)[order].reshape(blocks, units).sum(axis=1).max())

    if not is_balanced or largest(plain) <= _MIN_GAIN * counts.sum() / blocks:  # no order has a smaller one than the mean
        return plain
    members: list[list[int]] = [[] for _ in range(blocks)]
    loads = [(0, block) for block in range(blocks)]  # of those that have room: the least loaded takes the next largest unit
    for unit in np.argsort(-counts, kind="stable"):
        load, block = heapq.heappop(loads)
        members[block].append(int(unit))
        if len(members[block]) < units:
            heapq.heappush(loads, (load + int(counts[unit]), block))
    even = np.array([unit for own in members for unit in sorted(own) + [PADDING] * (units - len(own))], np.int32)
    return even if largest(plain) > _MIN_GAIN * largest(even) else plain


def min_rounds(counts: NDArray[np.int64], threads: int) -> int:
    """The fewest in which so many threads take all elements of a block, each of one row alone. counts: [blocks, rows]."""
    fewest, most = 1, max(1, int(counts.max()))
    while fewest < most:
        rounds = (fewest + most) // 2
        if (-(-counts // rounds)).sum(axis=1).max() <= threads:
            most = rounds
        else:
            fewest = rounds + 1
    return most


def is_bank_scheduled(turns: int, spread: Partition, is_bank_aware: bool) -> bool:
    """Whether threads' turns are drawn up together: of lists much shorter than classes are many, columns' order is better."""
    return is_bank_aware and turns > spread.bank_groups / 2


def padded_turns(rounds: int, arranged: bool) -> int:
    """An even number, with one to spare where that is worth it."""
    rounds += _SPARE_TURNS * (arranged and rounds < _LONG)
    return rounds + rounds % 2


def counts_per_block(counts: NDArray[np.int64], order: NDArray[np.int32], spread: Partition, hidden: int) -> NDArray[np.int64]:
    """[blocks, shared rows]: elements of each that a block has, units lying in that order. counts: [cluster, G*H], or flat."""
    return np.append(counts, 0)[_rows_of_blocks(order, spread, hidden)]  # of no row the last


def _rows_of_blocks(order: NDArray[np.int32], spread: Partition, hidden: int) -> NDArray[np.int64]:
    """[blocks, shared rows]: rows of the weight, in segment after segment of all of them; NONE for those of no unit."""
    units = order.reshape(-1, 1, spread.units * spread.cluster, 1).astype(np.int64)
    begin = np.arange(spread.cluster).reshape(-1, 1, 1) * (spread.gates * hidden)
    rows = np.where(units == PADDING, PADDING, begin + np.arange(spread.gates) * hidden + units)
    return rows.reshape(-1, spread.shared_rows)


def _slots(shares: NDArray[np.int64], threads: int) -> NDArray[np.int32]:
    """[threads] of a block: threads beside each other have different rows."""
    used = int(shares.sum())
    begin = np.cumsum(shares) - shares
    part = np.arange(used) - np.repeat(begin, shares)
    by_part = np.argsort(part, kind="stable")
    return np.append(by_part, np.arange(used, threads)).astype(np.int32)
