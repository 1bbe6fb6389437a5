"""Gates and linear scan of minGRU and minLSTM in one pass over the pre-activations, vectorised across channels.

Each cell is h_t = a_t h_(t-1) + b_t (arXiv 2410.01201). A task is a sequence, a tile of channels and a chunk of time;
threads take tasks from a counter. Exponentials are our own because Numba's are calls that LLVM does not vectorise.
"""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import cfunc, njit, types
from numba.extending import overload

from pytest_ecornn.implementations import _storage
from pytest_ecornn.implementations._storage import (
    ELEMENTS,
    at,
    exponent_bits,
    fence,
    is_line_start,
    lanes,
    like,
    load,
    pointer,
    prefetch,
    same_type,
    state_pointer,
    store,
    stream,
    take_one,
    workspace,
)  # fmt: skip

# No flag that lets LLVM assume away NaN, infinities or signed zeros; "contract" alone makes fused multiply-adds.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}, "forceinline": True}
_inline = njit(**_OPTIONS)

# Lowest argument, bias and mantissa of the type, margin, ln(2) in two parts, and exp(r)'s polynomial for |r| <= ln(2)/2,
# highest power first: 1 + r + r^2 p(r), p by Chebyshev interpolation.
_LOG2E = 1.4426950408889634
_EXP = {
    types.float32: (-104.0, 127, 23, 64, 0.693359375, -0.00021219444170128554,
        (0.0013926250394433737, 0.00836323294788599, 0.04166655242443085, 0.16666576266288757, 0.5, 1.0, 1.0)),
    types.float64: (-746.0, 1023, 52, 512, 6.93147180369123816490e-01, 1.9082149292705877e-10,
        (2.5100472505694996e-08, 2.7620201591031547e-07, 2.7557268276905696e-06, 2.4801521057868204e-05,
         0.00019841269863171557, 0.0013888888917367081, 0.008333333333330039, 0.041666666666623824,
         0.16666666666666669, 0.5000000000000001, 1.0, 1.0)),
}  # fmt: skip


def exp(x: Any) -> Any:
    """e^x for x <= 0 (or NaN), to about an ulp, underflowing gradually to 0."""


@overload(exp, jit_options=_OPTIONS)
def _exp(x: Any) -> Any:
    lowest, bias, mantissa, margin, ln2_high, ln2_low, powers = _EXP[x]
    # Adding this leaves, in the last bits of the sum, x / ln(2) rounded, plus what makes it a positive exponent.
    shift = 1.5 * 2.0**mantissa + bias + margin

    def implementation(x: Any) -> Any:
        low = like(x, lowest)
        x = low if x < low else x
        shifted = x * like(x, _LOG2E) + like(x, shift)
        n = shifted - like(x, shift)
        r = (x - n * like(x, ln2_high)) - n * like(x, ln2_low)
        p = like(x, powers[0])
        for power in powers[1:]:
            p = p * r + like(x, power)
        # 2^margin is taken back last, so that the result underflows gradually.
        return p * exponent_bits(shifted) * like(x, 2.0**-margin)

    return implementation


@_inline
def sigmoid_pair(x: Any) -> Any:
    """sigmoid(x) and sigmoid(-x), neither by a subtraction from 1, so both keep their relative accuracy."""
    e = exp(-abs(x))
    large = like(x, 1.0) / (like(x, 1.0) + e)
    small = e * large
    return (large, small) if x >= like(x, 0.0) else (small, large)


@_inline
def as_is(x: Any) -> Any:
    """The candidate and its slope."""
    return x, like(x, 1.0)


@_inline
def positive(x: Any) -> Any:
    """g of appendix B and its slope."""
    small, other = sigmoid_pair(x)
    is_linear = x >= like(x, 0.0)
    return (x + like(x, 0.5) if is_linear else small), (like(x, 1.0) if is_linear else small * other)


@_inline
def mingru(x: Any, c: int, hidden: int) -> Any:
    """What is kept of the old state, what is taken of the candidate, the candidate's pre-activation."""
    take, keep = sigmoid_pair(load(x, c))
    return keep, take, load(x, c + hidden)


@_inline
def mingru_next(x: Any, c: int, hidden: int, state: Any, candidate: Any) -> Any:
    """The new state, by one division."""
    z, (value, _) = load(x, c), candidate(load(x, c + hidden))
    e = exp(-abs(z))
    is_open = z >= like(z, 0.0)
    more, less = (value, state) if is_open else (state, value)
    return (e * less + more) / (like(z, 1.0) + e)


@_inline
def mingru_slopes(x: Any, dx: Any, c: int, hidden: int, width: int, push: Any, pull: Any) -> None:
    """Stores the pre-activations' gradients, a block of `width` a gate. push: dL/dtake * keep * take; pull: the candidate's."""
    store(dx, c, push)
    store(dx, c + width, pull)


@_inline
def bounded(x: Any) -> Any:
    """Infinity made finite (the difference of two infinities is no number), all else, NaN too, as it is."""
    most = like(x, 1e30)
    x = most if x > most else x
    return -most if x < -most else x


@_inline
def inverses(f: Any, i: Any) -> Any:
    """1 / sigmoid(i) and 1 / sigmoid(f), divided by the larger of exp(-f), exp(-i) and 1: only their ratio counts."""
    f, i = bounded(f), bounded(i)
    zero, one = like(f, 0.0), like(f, 1.0)
    u, v = one + exp(-abs(i)), one + exp(-abs(f))
    difference = (i if i < zero else zero) - (f if f < zero else zero)
    scale = exp(-abs(difference))
    return (u, v * scale) if difference < zero else (u * scale, v)


@_inline
def minlstm(x: Any, c: int, hidden: int) -> Any:
    """As `mingru`: f / (f + i) = u / (u + v) for u = 1 / i and v = 1 / f."""
    u, v = inverses(load(x, c), load(x, c + hidden))
    both = like(u, 1.0) / (u + v)
    return u * both, v * both, load(x, c + hidden + hidden)


@_inline
def minlstm_next(x: Any, c: int, hidden: int, state: Any, candidate: Any) -> Any:
    u, v = inverses(load(x, c), load(x, c + hidden))
    value, _ = candidate(load(x, c + hidden + hidden))
    return (u * state + v * value) / (u + v)


@_inline
def minlstm_slopes(x: Any, dx: Any, c: int, hidden: int, width: int, push: Any, pull: Any) -> None:
    _, closed_f = sigmoid_pair(load(x, c))
    _, closed_i = sigmoid_pair(load(x, c + hidden))
    store(dx, c, -push * closed_f)
    store(dx, c + width, push * closed_i)
    store(dx, c + width + width, pull)


# The integers that a launch is told, by their place. What ends in _T and _B: from a row to the next, in elements.
(NEXT, TASKS, STEPS, BATCH, HIDDEN, GATES, REVERSE, LENGTHS, TILE, CHUNK, STREAM, X, X_T, X_B, OUT, OUT_T, OUT_B,
 DOUT, DOUT_T, DOUT_B, DX, DX_T, DX_B, STATE, DECAY, FIRST, KEPT) = range(27)  # fmt: skip


@_inline
def bounds(raw: Any, task: int) -> Any:
    """The task's chunk, first and last step, sequence, first channel and number of channels."""
    tiles = (raw[HIDDEN] + raw[TILE] - 1) // raw[TILE]
    chunk, rest = task // (tiles * raw[BATCH]), task % (tiles * raw[BATCH])
    s, c = chunk * raw[CHUNK], rest % tiles * raw[TILE]
    return chunk, s, min(raw[STEPS], s + raw[CHUNK]), rest // tiles, c, min(raw[HIDDEN] - c, raw[TILE])


@_inline
def length(raw: Any, b: int) -> int:
    return raw[STEPS] if raw[LENGTHS] == 0 else pointer(raw[LENGTHS], np.int64)[b]


@_inline
def time_of(raw: Any, s: int, end: int) -> int:
    """The time of a sequence's s-th step in the order of the scan; padding stays where it is."""
    return end - 1 - s if raw[REVERSE] != 0 and s < end else s


@_inline
def time_to_ask(t: int, is_falling: bool, is_apart: bool, end: int) -> int:
    """Whose row to prefetch at time t: t's own where the hardware fetches what follows it.

    It does not where rows lie apart, nor where time falls: there the rows of the block of 16 before t's are asked for, in
    rising order.
    """
    if is_apart:
        return max(t - 2, 0) if is_falling else min(t + 2, end - 1)
    return max(t - 2 * (t % 16) - 1, 0) if is_falling else t


@_inline
def zero(row: Any, model: Any, width: int) -> None:
    for c in range(width):
        store(row, c, like(load(model, 0), 0.0))


@_inline
def write(raw: Any, row: Any, state: Any, width: int) -> None:
    """The state's tile -> a row of the output, past the caches where that is asked for and the row allows it."""
    done = 0
    if raw[STREAM] != 0 and is_line_start(row):
        done = width // lanes(row) * lanes(row)
        for c in range(0, done, lanes(row)):
            stream(row, state, c)
    for c in range(done, width):
        store(row, c, load(state, c))


@_inline
def advance(x: Any, state: Any, width: int, hidden: int, following: Any, candidate: Any) -> None:
    for c in range(width):
        store(state, c, following(x, c, hidden, load(state, c), candidate))


@_inline
def ask(row: Any, width: int, hidden: int, blocks: int) -> None:
    """Prefetches a tile of each of a row's blocks, so that all their lines are under way when the first is waited for."""
    for block in range(blocks):
        for c in range(0, width, lanes(row)):
            prefetch(row, block * hidden + c)


@_inline
def forward(raw: Any, x: Any, out: Any, gates: Any, rule: Any, candidate: Any) -> None:
    """STATE: the chunks' initial states [chunks, B, H] in the computing type, in place their final ones. Writes OUT.

    KEPT: null, or where the states that OUT rounds are written as they are, laid out as OUT.
    """
    every_state, hidden = state_pointer(raw[STATE], x), raw[HIDDEN]
    kept = same_type(raw[KEPT], every_state)
    task = take_one(raw)
    while task < raw[TASKS]:
        chunk, s0, s1, b, c0, width = bounds(raw, task)
        end = length(raw, b)
        state = at(every_state, (chunk * raw[BATCH] + b) * hidden + c0)
        for s in range(s0, s1):
            t = time_of(raw, s, end)
            place = t * raw[OUT_T] + b * raw[OUT_B] + c0
            if s < end:
                x_start = b * raw[X_B] + c0
                asked = time_to_ask(t, raw[REVERSE] != 0, raw[X_T] > raw[GATES] * hidden, end)
                ask(at(x, asked * raw[X_T] + x_start), width, hidden, raw[GATES])
                advance(at(x, t * raw[X_T] + x_start), state, width, hidden, rule, candidate)
                write(raw, at(out, place), state, width)
                if raw[KEPT] != 0:
                    write(raw, at(kept, place), state, width)
            else:
                zero(at(out, place), state, width)
        task = take_one(raw)
    fence()


@_inline
def forward_summary(raw: Any, x: Any, out: Any, gates: Any, rule: Any, candidate: Any) -> None:
    """What a chunk does to any initial state: STATE, from 0, becomes its end from 0; DECAY, from 1, the product of keeps."""
    every_state, every_decay, hidden = state_pointer(raw[STATE], x), state_pointer(raw[DECAY], x), raw[HIDDEN]
    task = take_one(raw)
    while task < raw[TASKS]:
        chunk, s0, s1, b, c0, width = bounds(raw, task)
        end = length(raw, b)
        place = (chunk * raw[BATCH] + b) * hidden + c0
        state, decay = at(every_state, place), at(every_decay, place)
        for s in range(s0, min(s1, end)):
            x_row = at(x, time_of(raw, s, end) * raw[X_T] + b * raw[X_B] + c0)
            for c in range(width):
                keep, take, raw_candidate = gates(x_row, c, hidden)
                value, _ = candidate(raw_candidate)
                store(state, c, keep * load(state, c) + take * value)
                store(decay, c, keep * load(decay, c))
        task = take_one(raw)


@_inline
def retreat(
    x: Any, old: Any, dout: Any, dx: Any, state: Any, width: int, hidden: int, gates: Any, rule: Any, candidate: Any
) -> None:
    for c in range(width):
        keep, take, raw_candidate = gates(x, c, hidden)
        value, slope = candidate(raw_candidate)
        g = load(dout, c) + load(state, c)
        rule(x, dx, c, hidden, width, g * (value - load(old, c)) * (keep * take), g * take * slope)
        store(state, c, keep * g)


@_inline
def backward(raw: Any, x: Any, out: Any, gates: Any, rule: Any, candidate: Any) -> None:
    """STATE: what later chunks send back, [chunks, B, H]; in place, what is sent to earlier ones. Writes DX.

    KEPT: the states that `forward` passed through, unrounded; FIRST: the initial ones [B, H], in the computing type too.
    """
    every_state, hidden = state_pointer(raw[STATE], x), raw[HIDDEN]
    first, kept = same_type(raw[FIRST], every_state), same_type(raw[KEPT], every_state)
    dout, dx = same_type(raw[DOUT], out), same_type(raw[DX], x)
    gradients = workspace(every_state)
    task = take_one(raw)
    while task < raw[TASKS]:
        chunk, s0, s1, b, c0, width = bounds(raw, task)
        end = length(raw, b)
        state = at(every_state, (chunk * raw[BATCH] + b) * hidden + c0)
        x_start, kept_start, dout_start = b * raw[X_B] + c0, b * raw[OUT_B] + c0, b * raw[DOUT_B] + c0
        for s in range(s1 - 1, s0 - 1, -1):
            t = time_of(raw, s, end)
            dx_row = at(dx, t * raw[DX_T] + b * raw[DX_B] + c0)
            if s < end:
                asked = time_to_ask(t, raw[REVERSE] == 0, raw[X_T] > raw[GATES] * hidden, end)
                ask(at(x, asked * raw[X_T] + x_start), width, hidden, raw[GATES])
                ask(at(dout, asked * raw[DOUT_T] + dout_start), width, hidden, 1)
                ask(at(kept, asked * raw[OUT_T] + kept_start), width, hidden, 1)
                old = at(first, b * hidden + c0)
                if s > 0:
                    old = at(kept, time_of(raw, s - 1, end) * raw[OUT_T] + kept_start)
                x_row, dout_row = at(x, t * raw[X_T] + x_start), at(dout, t * raw[DOUT_T] + dout_start)
                retreat(x_row, old, dout_row, gradients, state, width, hidden, gates, rule, candidate)
                for gate in range(raw[GATES]):
                    write(raw, at(dx_row, gate * hidden), at(gradients, gate * width), width)
            else:
                for gate in range(raw[GATES]):
                    zero(at(dx_row, gate * hidden), state, width)
        task = take_one(raw)
    fence()


@_inline
def backward_summary(raw: Any, x: Any, out: Any, gates: Any, rule: Any, candidate: Any) -> None:
    """As `forward_summary`, of the gradients that pass a chunk from its last step to its first."""
    every_state, every_decay, hidden = state_pointer(raw[STATE], x), state_pointer(raw[DECAY], x), raw[HIDDEN]
    dout = same_type(raw[DOUT], out)
    task = take_one(raw)
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
        task = take_one(raw)


@cache
def kernel(kind: str, cell: str, x_dtype: str, dtype: str) -> Any:
    """A function void(int64*) compiled for one of KINDS, a cell, and the dtypes of pre-activations and of output.

    It takes tasks until none is left, so any number of threads may call it on the same integers.
    """
    x_element, element, source = ELEMENTS[x_dtype], ELEMENTS[dtype], _SOURCE

    @cfunc(types.void(types.CPointer(types.int64)), cache=True)
    def run(raw: Any) -> None:
        if source == 0:  # never: it only makes the cache distinguish versions of every file that is compiled here
            return
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
            work = forward_summary
        elif kind == "backward":
            work = backward
        else:
            work = backward_summary
        work(raw, pointer(raw[X], x_element), pointer(raw[OUT], element), gates, rule, candidate)

    return run


# Numba's cache looks at one file only.
_SOURCE = zlib.crc32(Path(__file__).read_bytes() + Path(_storage.__file__).read_bytes())
