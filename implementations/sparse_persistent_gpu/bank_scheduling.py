"""Assigns a block's non-zeros to rounds of its threads, in the order of columns or so that reads have few bank conflicts.

Numba compiles the functions; each takes one block at a time. rows: the block's rows, NONE for one without elements. firsts:
their first slots. threads: the thread of each slot. Row r has elements `starts[r]` to `starts[r + 1]`, at positions `at` of the
states. Written: `columns` and `sources` [rounds, threads], the position that a thread reads in a round and the element that it
multiplies by.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pytest_ecornn.implementations.sparse_persistent_gpu.csr import PADDING


@njit(cache=True)  # type: ignore[untyped-decorator]
def fill(starts: Any, at: Any, rows: Any, firsts: Any, columns: Any, sources: Any) -> None:
    """A block's elements in the order of their columns; slots are threads."""
    for local in range(len(rows)):
        if rows[local] == PADDING:
            continue
        share = firsts[local + 1] - firsts[local]
        for i in range(starts[rows[local]], starts[rows[local] + 1]):
            rank = i - starts[rows[local]]
            thread, turn = firsts[local] + rank % share, rank // share
            columns[turn, thread], sources[turn, thread] = at[i], i


@njit(cache=True)  # type: ignore[untyped-decorator]
def schedule_conflict_free(
    starts: Any, at: Any, rows: Any, firsts: Any, threads: Any, classes: int, together: int, zeros: int, columns: Any,
    sources: Any,
) -> None:  # fmt: skip
    """A block's elements, dealt out to each row's threads class by class, so that all of these have some of each."""
    lists, counts = _deal_by_bank(starts, at, rows, firsts, threads, classes, together, len(sources))
    chosen, taken = np.zeros(classes, np.int32), np.zeros((classes, classes), np.int32)
    for first in range(0, sources.shape[1], classes):
        left = counts[first : first + classes].copy()
        of_class, of_lane = left.sum(axis=0), left.sum(axis=1)
        taken[:] = 0
        for turn in range(len(sources)):
            _choose_bank_group(left, of_class, of_lane, turn, len(sources), chosen)
            for lane in range(classes):
                which, thread = chosen[lane], first + lane
                if which >= classes:  # it reads in vain, where it is in nobody's way
                    columns[turn, thread] = zeros + (which - classes) * together
                    continue
                i = lists[thread, which, taken[lane, which]]
                taken[lane, which] += 1
                columns[turn, thread], sources[turn, thread] = at[i], i


@njit(cache=True)  # type: ignore[untyped-decorator]
def _deal_by_bank(
    starts: Any, at: Any, rows: Any, firsts: Any, threads: Any, classes: int, together: int, turns: int
) -> tuple[Any, Any]:
    """Returns the elements of each thread and class [threads, bank groups, rounds], and their counts [threads, bank groups]."""
    lists = np.empty((len(threads), classes, turns), np.int32)
    counts = np.zeros((len(threads), classes), np.int32)
    for local in range(len(rows)):
        if rows[local] == PADDING:
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
def _choose_bank_group(left: Any, of_class: Any, of_lane: Any, turn: int, turns: int, chosen: Any) -> None:
    """Each thread's class in a turn, or where it takes no element so many more. left: [threads, bank groups], made less.

    Each takes one that nobody has taken yet, of that of which most are left; where it has none such it waits if it can.
    """
    classes, used = len(left), 0
    chosen[:] = PADDING
    for k in range(classes):
        lane = (turn + k) % classes
        best, most = PADDING, 0
        for which in range(classes):
            if left[lane, which] > 0 and of_class[which] > most and not used >> which & 1:
                best, most = which, of_class[which]
        if best == PADDING and of_lane[lane] >= turns - turn:
            best = int(np.argmax(left[lane]))
        if best != PADDING:
            left[lane, best] -= 1
            of_class[best] -= 1
            of_lane[lane] -= 1
            used |= 1 << best
            chosen[lane] = best
    idle = 0
    for lane in range(classes):
        if chosen[lane] == PADDING:
            while used >> idle & 1:
                idle += 1
            chosen[lane] = classes + idle
            idle += 1
