"""A pruned weight's non-zeros in the order in which the threads of a grid's blocks keep them: pure, on the host.

Each block owns some hidden units, whose rows' elements its threads share: as many threads to a row as make the longest
thread's list as short as can be. In every turn each thread multiplies one of its elements by what it reads from shared memory;
of threads that read at once each is to read from other banks, so that they have rows of their own, of which chance does not
favour the same columns, and their turns are drawn up together. Source: Zhu et al., Sparse Persistent RNNs, ICLR 2018.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pytest_ecornn.implementations._sparse_nonzeros import NonZeros, starts_of

NONE = -1
_LEAST_GAIN = 1.1  # in the most elements of a block, for which units leave their order, in which they are read together
_SPARE_TURNS, _LONG = 1, 100  # with so many more, where there are not many, reads can be arranged so that few collide


@dataclass(frozen=True)
class Spread:
    """How a weight [G*H, H] lies in blocks of `units` hidden units and `threads` threads.

    classes: of banks that so many threads, which read at once, can all read without waiting for each other; `together`
    columns beside each other are of one class, then come those of the next.
    """

    gates: int
    units: int
    threads: int
    classes: int = 8
    together: int = 1

    def __post_init__(self) -> None:
        if self.rows > self.threads:
            raise ValueError(f"a block of {self.units} units has {self.rows} rows, more than its {self.threads} threads")
        if self.threads % self.classes:
            raise ValueError(f"{self.threads} threads are no multiple of the {self.classes} that read at once")

    @property
    def rows(self) -> int:
        """Of a block: a unit's gates beside each other."""
        return self.gates * self.units


@dataclass(frozen=True, eq=False)
class Packed:
    """Sums of a row are made by threads whose slots are beside each other.

    order: [blocks * units] int32, the hidden unit at each position, NONE beyond the last; columns are positions, too.
    firsts: [blocks, rows + 1] int32, the first slot of each row. slots: [blocks, threads] int32, of each thread.
    columns: [blocks, turns, threads] uint16. sources: likewise, int32: which element of the pattern lies there, NONE for a
    product with 0. turns are even.
    """

    spread: Spread
    nonzeros: NonZeros
    order: NDArray[np.int32]
    firsts: NDArray[np.int32]
    slots: NDArray[np.int32]
    columns: NDArray[np.uint16]
    sources: NDArray[np.int32]

    @property
    def turns(self) -> int:
        return int(self.sources.shape[1])

    @property
    def collisions(self) -> float:
        """How many more times shared memory is read in a turn than once, on average, at most: who reads the same is counted."""
        reads = self.columns.reshape(-1, self.spread.classes).astype(np.int32)
        classes = np.sort(reads // self.spread.together % self.spread.classes, axis=1)
        run, longest = np.ones(len(classes), np.int32), np.ones(len(classes), np.int32)
        for lane in range(1, self.spread.classes):
            run = np.where(classes[:, lane] == classes[:, lane - 1], run + 1, 1)
            longest = np.maximum(longest, run)
        return float(longest.mean()) - 1

    def unpacked(self) -> NonZeros:
        """The pattern, found again from what lies where."""
        block, turn, thread = np.nonzero(self.sources != NONE)
        of_block = zip(self.firsts, self.slots, strict=True)
        row = np.stack([np.searchsorted(first, slots, side="right") - 1 for first, slots in of_block])
        local, hidden = row[block, thread], self.nonzeros.shape[1]
        rows = local % self.spread.gates * hidden + self.order[block * self.spread.units + local // self.spread.gates]
        columns = self.order[self.columns[block, turn, thread]]
        found = np.lexsort((columns, rows))
        counts = np.bincount(rows, minlength=self.nonzeros.shape[0])
        return NonZeros(self.nonzeros.shape, starts_of(counts), columns[found])


def pack(nonzeros: NonZeros, spread: Spread, is_balanced: bool = True, is_bank_aware: bool = True) -> Packed:
    """is_balanced: units change places where blocks would be uneven. is_bank_aware: threads' turns are drawn up together.

    Without either all lies in the order of units and columns. Raises ValueError for a shape that is not [G*H, H].
    """
    rows, hidden = nonzeros.shape
    if rows != spread.gates * hidden or hidden > np.iinfo(np.uint16).max:
        raise ValueError(f"expected {spread.gates} gates of H below 65536, a weight [G*H, H], got {list(nonzeros.shape)}")
    order = order_of(nonzeros.counts.reshape(spread.gates, hidden).sum(axis=0), spread.units, is_balanced)
    own_rows = _rows_of_blocks(order, spread, hidden)
    counts = np.append(nonzeros.counts, 0)[own_rows]  # [blocks, rows]; of no row the last
    turns = turns_of(counts, spread.threads)
    shares = -(-counts // turns)
    firsts = np.concatenate((np.zeros((len(shares), 1), np.int64), np.cumsum(shares, axis=1)), axis=1).astype(np.int32)
    turns += _SPARE_TURNS * (is_bank_aware and turns < _LONG)
    shape = len(firsts), turns + turns % 2, spread.threads
    columns, sources = np.zeros(shape, np.uint16), np.full(shape, NONE, np.int32)
    slots = np.stack([_slots(share, spread.threads) for share in shares]) if is_bank_aware else _in_order(shape)
    position = np.empty(hidden, np.int32)
    position[order[order != NONE]] = np.flatnonzero(order != NONE)
    at = position[nonzeros.columns]
    for block, own in enumerate(own_rows):
        threads = np.argsort(slots[block]).astype(np.int32)
        laid = columns[block], sources[block]
        if is_bank_aware:
            _arrange(nonzeros.starts, at, own, firsts[block], threads, spread.classes, spread.together, hidden, *laid)
        else:
            _fill(nonzeros.starts, at, own, firsts[block], *laid)
    return Packed(spread, nonzeros, order, firsts, slots, columns, sources)


def order_of(counts: NDArray[np.int64], units: int, is_balanced: bool) -> NDArray[np.int32]:
    """[blocks * units] int32: the hidden unit at each position, NONE beyond the last. counts: of their elements [H]."""
    blocks = ceil(len(counts) / units)
    plain = np.append(np.arange(len(counts)), np.full(blocks * units - len(counts), NONE)).astype(np.int32)
    if not is_balanced:
        return plain
    members: list[list[int]] = [[] for _ in range(blocks)]
    loads = [(0, block) for block in range(blocks)]  # of those that have room: the least loaded takes the next largest unit
    for unit in np.argsort(-counts, kind="stable"):
        load, block = heapq.heappop(loads)
        members[block].append(int(unit))
        if len(members[block]) < units:
            heapq.heappush(loads, (load + int(counts[unit]), block))
    even = np.array([unit for own in members for unit in sorted(own) + [NONE] * (units - len(own))], np.int32)
    most = [np.append(counts, 0)[order].reshape(blocks, units).sum(axis=1).max() for order in (plain, even)]
    return even if most[0] > _LEAST_GAIN * most[1] else plain


def turns_of(counts: NDArray[np.int64], threads: int) -> int:
    """The fewest in which so many threads take all elements of a block, each of one row alone. counts: [blocks, rows]."""
    fewest, most = 1, max(1, int(counts.max()))
    while fewest < most:
        turns = (fewest + most) // 2
        if (-(-counts // turns)).sum(axis=1).max() <= threads:
            most = turns
        else:
            fewest = turns + 1
    return most


def _rows_of_blocks(order: NDArray[np.int32], spread: Spread, hidden: int) -> NDArray[np.int64]:
    """[blocks, rows]: rows of the weight, NONE for those of no unit."""
    units = order.reshape(-1, spread.units, 1).astype(np.int64)
    rows = np.where(units == NONE, NONE, np.arange(spread.gates) * hidden + units)
    return rows.reshape(-1, spread.rows)


def _in_order(shape: tuple[int, int, int]) -> NDArray[np.int32]:
    return np.broadcast_to(np.arange(shape[2], dtype=np.int32), (shape[0], shape[2]))


def _slots(shares: NDArray[np.int64], threads: int) -> NDArray[np.int32]:
    """[threads] of a block: threads beside each other have different rows."""
    used = int(shares.sum())
    first = np.cumsum(shares) - shares
    part = np.arange(used) - np.repeat(first, shares)
    by_part = np.argsort(part, kind="stable")
    return np.append(by_part, np.arange(used, threads)).astype(np.int32)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _fill(starts: Any, at: Any, rows: Any, firsts: Any, columns: Any, sources: Any) -> None:
    """A block's elements in the order of their columns; slots are threads."""
    for local in range(len(rows)):
        if rows[local] == NONE:
            continue
        share = firsts[local + 1] - firsts[local]
        for i in range(starts[rows[local]], starts[rows[local] + 1]):
            rank = i - starts[rows[local]]
            thread, turn = firsts[local] + rank % share, rank // share
            columns[turn, thread], sources[turn, thread] = at[i], i


@njit(cache=True)  # type: ignore[untyped-decorator]
def _arrange(
    starts: Any, at: Any, rows: Any, firsts: Any, threads: Any, classes: int, together: int, hidden: int, columns: Any,
    sources: Any,
) -> None:  # fmt: skip
    """A block's elements, dealt out to each row's threads class by class, so that all of these have some of each."""
    lists, counts = _dealt(starts, at, rows, firsts, threads, classes, together, len(sources))
    chosen, taken = np.zeros(classes, np.int32), np.zeros((classes, classes), np.int32)
    for first in range(0, sources.shape[1], classes):
        left = counts[first : first + classes].copy()
        of_class, of_lane = left.sum(axis=0), left.sum(axis=1)
        taken[:] = 0
        for turn in range(len(sources)):
            _choose(left, of_class, of_lane, turn, len(sources), chosen)
            for lane in range(classes):
                which, thread = chosen[lane], first + lane
                if which >= classes:  # it reads in vain, where it is in nobody's way
                    column = (which - classes) * together
                    columns[turn, thread] = column if column < hidden else 0
                    continue
                i = lists[thread, which, taken[lane, which]]
                taken[lane, which] += 1
                columns[turn, thread], sources[turn, thread] = at[i], i


@njit(cache=True)  # type: ignore[untyped-decorator]
def _dealt(
    starts: Any, at: Any, rows: Any, firsts: Any, threads: Any, classes: int, together: int, turns: int
) -> tuple[Any, Any]:
    """Of each thread and class the elements [threads, classes, turns], and how many they are [threads, classes]."""
    lists = np.empty((len(threads), classes, turns), np.int32)
    counts = np.zeros((len(threads), classes), np.int32)
    for local in range(len(rows)):
        if rows[local] == NONE:
            continue
        share, rank = firsts[local + 1] - firsts[local], 0
        for which in range(classes):
            for i in range(starts[rows[local]], starts[rows[local] + 1]):
                if at[i] // together % classes == which:
                    thread = threads[firsts[local] + rank % share]
                    lists[thread, which, counts[thread, which]] = i
                    counts[thread, which] += 1
                    rank += 1
    return lists, counts


@njit(cache=True)  # type: ignore[untyped-decorator]
def _choose(left: Any, of_class: Any, of_lane: Any, turn: int, turns: int, chosen: Any) -> None:
    """Each thread's class in a turn, or where it takes no element so many more. left: [threads, classes], made less.

    Each takes one that nobody has taken yet, of that of which most are left; where it has none such it waits if it can.
    """
    classes, used = len(left), 0
    chosen[:] = NONE
    for k in range(classes):
        lane = (turn + k) % classes
        best, most = NONE, 0
        for which in range(classes):
            if left[lane, which] > 0 and of_class[which] > most and not used >> which & 1:
                best, most = which, of_class[which]
        if best == NONE and of_lane[lane] >= turns - turn:
            best = int(np.argmax(left[lane]))
        if best != NONE:
            left[lane, best] -= 1
            of_class[best] -= 1
            of_lane[lane] -= 1
            used |= 1 << best
            chosen[lane] = best
    idle = 0
    for lane in range(classes):
        if chosen[lane] == NONE:
            while used >> idle & 1:
                idle += 1
            chosen[lane] = classes + idle
            idle += 1
