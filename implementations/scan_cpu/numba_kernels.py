"""Gates and linear scan of minGRU and minLSTM in one pass over the pre-activations, vectorised across channels.

Each cell is h_t = a_t h_(t-1) + b_t (arXiv 2410.01201). A task is a sequence, a tile of channels and a chunk of time;
threads take tasks from a counter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_ecornn.implementations._cpu.compile import inline
from pytest_ecornn.implementations._cpu.memory import (
    ELEMENTS,
    at,
    constant_like,
    fence,
    fetch_add,
    is_line_start,
    load,
    num_lanes,
    pointer,
    prefetch,
    same_type,
    state_pointer,
    store,
    store_nontemporal,
    workspace,
)
from pytest_ecornn.implementations.scan_cpu.numba_gates import (
    as_is,
    mingru,
    mingru_next,
    mingru_slopes,
    minlstm,
    minlstm_next,
    minlstm_slopes,
    positive,
)

# The integers that a launch is told, by their place. What ends in _T and _B: from a row to the next, in elements.
(NEXT, TASKS, STEPS, BATCH, HIDDEN, GATES, REVERSE, LENGTHS, TILE, CHUNK, STREAM, X, X_T, X_B, OUT, OUT_T, OUT_B,
 DOUT, DOUT_T, DOUT_B, DX, DX_T, DX_B, STATE, DECAY, FIRST, KEPT, ZEROS, RESETS, RESETS_T, RESETS_B) = range(31)  # fmt: skip


@inline
def bounds(raw: Any, task: int) -> Any:
    """The task's chunk, first and last step, sequence, first channel and number of channels."""
    tiles = (raw[HIDDEN] + raw[TILE] - 1) // raw[TILE]
    chunk, rest = task // (tiles * raw[BATCH]), task % (tiles * raw[BATCH])
    s, c = chunk * raw[CHUNK], rest % tiles * raw[TILE]
    return chunk, s, min(raw[STEPS], s + raw[CHUNK]), rest // tiles, c, min(raw[HIDDEN] - c, raw[TILE])


@inline
def length(raw: Any, b: int) -> int:
    return raw[STEPS] if raw[LENGTHS] == 0 else pointer(raw[LENGTHS], np.int64)[b]


@inline
def is_reset(raw: Any, t: int, b: int) -> bool:
    """Whether the step at time t starts from a state of zeros."""
    return raw[RESETS] != 0 and pointer(raw[RESETS], np.uint8)[t * raw[RESETS_T] + b * raw[RESETS_B]] != 0


@inline
def time_of(raw: Any, s: int, end: int) -> int:
    """The time of a sequence's s-th step in the order of the scan; padding stays where it is."""
    return end - 1 - s if raw[REVERSE] != 0 and s < end else s


@inline
def prefetch_time(t: int, is_falling: bool, is_apart: bool, end: int) -> int:
    """Returns the time of the row to prefetch at time t: t itself where the hardware prefetches the rows after it.

    The hardware does not where rows are apart, nor where time falls. Where rows are apart, the row two steps ahead is
    prefetched. Otherwise, where time falls, the rows of the block of 16 before t's are prefetched, in rising order.
    """
    if is_apart:
        return max(t - 2, 0) if is_falling else min(t + 2, end - 1)
    return max(t - 2 * (t % 16) - 1, 0) if is_falling else t


@inline
def fill(row: Any, model: Any, width: int, value: float) -> None:
    for c in range(width):
        store(row, c, constant_like(load(model, 0), value))


@inline
def write(raw: Any, row: Any, state: Any, width: int) -> None:
    """The state's tile -> a row of the output, past the caches where that is asked for and the row allows it."""
    written = 0
    if raw[STREAM] != 0 and is_line_start(row):
        written = width // num_lanes(row) * num_lanes(row)
        for c in range(0, written, num_lanes(row)):
            store_nontemporal(row, state, c)
    for c in range(written, width):
        store(row, c, load(state, c))


@inline
def step_forward(x: Any, state: Any, width: int, hidden: int, following: Any, candidate: Any) -> None:
    for c in range(width):
        store(state, c, following(x, c, hidden, load(state, c), candidate))


@inline
def prefetch_row(row: Any, width: int, hidden: int, blocks: int) -> None:
    """Prefetches a tile of each of a row's blocks, so that all their lines are under way when the first is waited for."""
    for block in range(blocks):
        for c in range(0, width, num_lanes(row)):
            prefetch(row, block * hidden + c)


@inline
def forward(raw: Any, x: Any, out: Any, gates: Any, rule: Any, candidate: Any) -> None:
    """STATE: the chunks' initial states [chunks, B, H] in the computing type, in place their final ones. Writes OUT.

    KEPT: null, or where the states that OUT rounds are written as they are, laid out as OUT.
    """
    every_state, hidden = state_pointer(raw[STATE], x), raw[HIDDEN]
    kept = same_type(raw[KEPT], every_state)
    task = fetch_add(raw)
    while task < raw[TASKS]:
        chunk, s0, s1, b, c0, width = bounds(raw, task)
        end = length(raw, b)
        state = at(every_state, (chunk * raw[BATCH] + b) * hidden + c0)
        for s in range(s0, s1):
            t = time_of(raw, s, end)
            place = t * raw[OUT_T] + b * raw[OUT_B] + c0
            if s < end:
                x_start = b * raw[X_B] + c0
                asked = prefetch_time(t, raw[REVERSE] != 0, raw[X_T] > raw[GATES] * hidden, end)
                prefetch_row(at(x, asked * raw[X_T] + x_start), width, hidden, raw[GATES])
                if is_reset(raw, t, b):
                    fill(state, state, width, 0.0)
                step_forward(at(x, t * raw[X_T] + x_start), state, width, hidden, rule, candidate)
                write(raw, at(out, place), state, width)
                if raw[KEPT] != 0:
                    write(raw, at(kept, place), state, width)
            else:
                fill(at(out, place), state, width, 0.0)
        task = fetch_add(raw)
    fence()


@inline
def chunk_reduce(raw: Any, x: Any, out: Any, gates: Any, rule: Any, candidate: Any) -> None:
    """Computes a chunk's map of initial states. STATE: 0, becomes its final state from 0. DECAY: 1, becomes the keeps' product.

    A reset makes the product -0, which nothing else does: the initial state then has no effect, whatever its value.
    """
    every_state, every_decay, hidden = state_pointer(raw[STATE], x), state_pointer(raw[DECAY], x), raw[HIDDEN]
    task = fetch_add(raw)
    while task < raw[TASKS]:
        chunk, s0, s1, b, c0, width = bounds(raw, task)
        end = length(raw, b)
        place = (chunk * raw[BATCH] + b) * hidden + c0
        state, decay = at(every_state, place), at(every_decay, place)
        for s in range(s0, min(s1, end)):
            t = time_of(raw, s, end)
            x_row = at(x, t * raw[X_T] + b * raw[X_B] + c0)
            if is_reset(raw, t, b):
                fill(state, state, width, 0.0)
                fill(decay, state, width, -0.0)
            for c in range(width):
                keep, take, raw_candidate = gates(x_row, c, hidden)
                value, _ = candidate(raw_candidate)
                store(state, c, keep * load(state, c) + take * value)
                store(decay, c, keep * load(decay, c))
        task = fetch_add(raw)


@inline
def step_backward(
    x: Any, old: Any, dout: Any, dx: Any, state: Any, width: int, hidden: int, gates: Any, rule: Any, candidate: Any
) -> None:
    for c in range(width):
        keep, take, raw_candidate = gates(x, c, hidden)
        value, slope = candidate(raw_candidate)
        g = load(dout, c) + load(state, c)
        rule(x, dx, c, hidden, width, g * (value - load(old, c)) * (keep * take), g * take * slope)
        store(state, c, keep * g)


@inline
def backward(raw: Any, x: Any, out: Any, gates: Any, rule: Any, candidate: Any) -> None:
    """STATE: what later chunks send back, [chunks, B, H]; in place, what is sent to earlier ones. Writes DX.

    KEPT: the states that `forward` passed through, unrounded; FIRST: the initial ones [B, H], in the computing type too, as are
    ZEROS [H], from which a step that is reset started.
    """
    every_state, hidden = state_pointer(raw[STATE], x), raw[HIDDEN]
    first, kept = same_type(raw[FIRST], every_state), same_type(raw[KEPT], every_state)
    dout, dx = same_type(raw[DOUT], out), same_type(raw[DX], x)
    gradients = workspace(every_state)
    task = fetch_add(raw)
    while task < raw[TASKS]:
        chunk, s0, s1, b, c0, width = bounds(raw, task)
        end = length(raw, b)
        state = at(every_state, (chunk * raw[BATCH] + b) * hidden + c0)
        x_start, kept_start, dout_start = b * raw[X_B] + c0, b * raw[OUT_B] + c0, b * raw[DOUT_B] + c0
        for s in range(s1 - 1, s0 - 1, -1):
            t = time_of(raw, s, end)
            dx_row = at(dx, t * raw[DX_T] + b * raw[DX_B] + c0)
            if s < end:
                asked = prefetch_time(t, raw[REVERSE] == 0, raw[X_T] > raw[GATES] * hidden, end)
                prefetch_row(at(x, asked * raw[X_T] + x_start), width, hidden, raw[GATES])
                prefetch_row(at(dout, asked * raw[DOUT_T] + dout_start), width, hidden, 1)
                prefetch_row(at(kept, asked * raw[OUT_T] + kept_start), width, hidden, 1)
                old = at(first, b * hidden + c0)
                is_new = is_reset(raw, t, b)
                if is_new:
                    old = same_type(raw[ZEROS], every_state)
                elif s > 0:
                    old = at(kept, time_of(raw, s - 1, end) * raw[OUT_T] + kept_start)
                x_row, dout_row = at(x, t * raw[X_T] + x_start), at(dout, t * raw[DOUT_T] + dout_start)
                step_backward(x_row, old, dout_row, gradients, state, width, hidden, gates, rule, candidate)
                for gate in range(raw[GATES]):
                    write(raw, at(dx_row, gate * hidden), at(gradients, gate * width), width)
                if is_new:
                    fill(state, state, width, 0.0)
            else:
                for gate in range(raw[GATES]):
                    fill(at(dx_row, gate * hidden), state, width, 0.0)
        task = fetch_add(raw)
    fence()


@inline
def backward_summary(raw: Any, x: Any, out: Any, gates: Any, rule: Any, candidate: Any) -> None:
    """Computes the same as `chunk_reduce` for the gradients that pass a chunk from its last step to its first."""
    every_state, every_decay, hidden = state_pointer(raw[STATE], x), state_pointer(raw[DECAY], x), raw[HIDDEN]
    dout = same_type(raw[DOUT], out)
    task = fetch_add(raw)
    while task < raw[TASKS]:
        chunk, s0, s1, b, c0, width = bounds(raw, task)
        end = length(raw, b)
        place = (chunk * raw[BATCH] + b) * hidden + c0
        state, decay = at(every_state, place), at(every_decay, place)
        for s in range(min(s1, end) - 1, s0 - 1, -1):
            t = time_of(raw, s, end)
            x_row, dout_row = at(x, t * raw[X_T] + b * raw[X_B] + c0), at(dout, t * raw[DOUT_T] + b * raw[DOUT_B] + c0)
            for c in range(width):
                keep, _, _ = gates(x_row, c, hidden)
                store(state, c, keep * (load(dout_row, c) + load(state, c)))
                store(decay, c, keep * load(decay, c))
            if is_reset(raw, t, b):
                fill(state, state, width, 0.0)
                fill(decay, state, width, -0.0)
        task = fetch_add(raw)


def kernel(kind: str, cell: str, x_dtype: str, dtype: str) -> Callable[[Any], None]:
    """The function of one of KINDS, a cell, and the dtypes of pre-activations and of output.

    It takes tasks until none is left, so any number of threads may call it on the same integers.
    """
    x_element, element = ELEMENTS[x_dtype], ELEMENTS[dtype]

    def run(raw: Any) -> None:
        if cell == "mingru" or cell == "mingru_positive":
            gates = mingru
            rule = mingru_next if kind == "forward" else mingru_slopes
        else:
            gates = minlstm
            rule = minlstm_next if kind == "forward" else minlstm_slopes
        candidate = as_is if cell == "mingru" or cell == "minlstm" else positive
        if kind == "forward":
            work = forward
        elif kind == "forward_summary":
            work = chunk_reduce
        elif kind == "backward":
            work = backward
        else:
            work = backward_summary
        work(raw, pointer(raw[X], x_element), pointer(raw[OUT], element), gates, rule, candidate)

    return run
