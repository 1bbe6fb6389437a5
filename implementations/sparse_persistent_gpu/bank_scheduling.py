"""Assigns a block's non-zeros to rounds of its threads, in the order of columns or so that reads have few bank conflicts.

Numba compiles the functions; each takes one block at a time. columns, sources: [rounds, threads], the position of the states
that a thread reads in a round, and the element that it multiplies by. bank_groups: the class of each position.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pytest_ecornn.implementations.sparse_persistent_gpu.csr import PADDING


@njit(cache=True)  # type: ignore[untyped-decorator]
def deal(starts: Any, at: Any, rows: Any, firsts: Any, threads: Any, bank_groups: Any, columns: Any, sources: Any) -> None:
    """Writes each row's elements, dealt out to its threads class by class, so that all of these have some of each.

    rows: the block's rows, PADDING for one without elements. firsts: their first slots. threads: the thread of each slot. Row r
    has elements `starts[r]` to `starts[r + 1]`, at positions `at`.
    """
    classes = bank_groups.max() + 1
    for local, row in enumerate(rows):
        if row == PADDING:
            continue
        elements, share = range(starts[row], starts[row + 1]), firsts[local + 1] - firsts[local]
        counts = np.zeros(classes, np.int64)
        for i in elements:
            counts[bank_groups[at[i]]] += 1
        ranks = counts.cumsum() - counts  # of the next element of each class
        for i in elements:
            turn, slot = divmod(ranks[bank_groups[at[i]]], share)
            ranks[bank_groups[at[i]]] += 1
            thread = threads[firsts[local] + slot]
            columns[turn, thread], sources[turn, thread] = at[i], i


@njit(cache=True)  # type: ignore[untyped-decorator]
def schedule_conflict_free(bank_groups: Any, classes: int, together: int, zeros: int, columns: Any, sources: Any) -> None:
    """Moves the elements that were dealt to a thread to turns in which threads that read at once read from different banks.

    classes: of banks, and threads that read at once. together: adjacent positions of one class. zeros: the first that holds 0.
    """
    turns, chosen = len(sources), np.zeros(classes, np.int32)
    for first in range(0, sources.shape[1], classes):
        dealt_columns, dealt_sources = columns[:, first : first + classes].copy(), sources[:, first : first + classes].copy()
        left, last = np.zeros((classes, classes), np.int32), np.zeros((classes, classes), np.int32)
        for turn, lane in np.ndindex(dealt_sources.shape):
            if dealt_sources[turn, lane] != PADDING:
                which = bank_groups[dealt_columns[turn, lane]]
                left[lane, which] += 1
                last[lane, which] = turn  # those of a class lie in turns on end
        of_class, of_lane = left.sum(axis=0), left.sum(axis=1)
        for turn in range(turns):
            _choose_bank_group(left, of_class, of_lane, turn, turns, chosen)
            for lane in range(classes):
                which, thread = chosen[lane], first + lane
                if which < classes:
                    i = last[lane, which] - left[lane, which]
                    columns[turn, thread], sources[turn, thread] = dealt_columns[i, lane], dealt_sources[i, lane]
                else:  # it reads in vain, where it is in nobody's way
                    columns[turn, thread], sources[turn, thread] = zeros + (which - classes) * together, PADDING


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
