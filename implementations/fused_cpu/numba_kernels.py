"""LSTM, GRU and RNN on a CPU: a step's recurrent product and its gates in one pass, for a few sequences at a time.

Maths   forward: gates = x_t + W_hh h_(t-1) + b_hh, then the cell's equations (cell_steps.py, torch.nn's).
        backward: the gates' gradients of a step from those of the state, then dh_(t-1) += W_hh^T dgates.
Layout  x [T, B, G*H], or x [T, B, I] where the kernel multiplies by W_ih too; any strides but 1 in the last dimension.
        out [T, B, H] likewise. W packed, or [N, K] as torch has it (panels.py).
        saved [T*B, S*H], old [T*B, H], dx and dsums [T*B, G*H], rows as x's lie.
        h0, c0, and their final values and gradients [B, H]. lengths int64 [B], resets bool [T, B].
Launch  a task is up to ROWS sequences over all steps; threads take tasks from a counter. WORK: `layout.work_elements`.
Cost    a step reads W_hh once a task: from the second-level cache up to H 128, beyond from the third.
Limits  none but memory.
Order   a sum over k has two parts for one row, of even and odd k, one part for more rows. So bits depend
        on which rows of a task are alone, and by the tasks' sizes on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from pytest_ecornn.implementations._cpu.compile import OPTIONS, inline
from pytest_ecornn.implementations._cpu.memory import (
    ELEMENTS,
    at,
    constant_like,
    fetch_add,
    load,
    pointer,
    same_type,
    state_pointer,
    store,
)
from pytest_ecornn.implementations.fused_cpu import cell_steps
from pytest_ecornn.implementations.fused_cpu.fields import (
    B_HH,
    B_IH,
    BATCH,
    C0,
    CN,
    DSUMS,
    DX,
    GATES,
    H0,
    HIDDEN,
    HN,
    INPUT,
    LENGTHS,
    OLD,
    OUT,
    OUT_B,
    OUT_T,
    PACKED,
    RESETS,
    RESETS_B,
    RESETS_T,
    REVERSE,
    ROW_B,
    ROW_T,
    ROWS,
    SAVED,
    SAVED_BLOCKS,
    STEPS,
    TASKS,
    W_HH,
    W_HH_SCALES,
    W_IH,
    W_IH_SCALES,
    WORK,
    X_B,
    X_T,
    X,
)
from pytest_ecornn.implementations.fused_cpu.layout import DEPTH, PANEL
from pytest_ecornn.implementations.fused_cpu.panels import multiply, multiply_rows


@inline
def round_up(size: int, multiple: int) -> int:
    return (size + multiple - 1) // multiple * multiple


@inline
def length(raw: Any, b: int) -> int:
    return raw[STEPS] if raw[LENGTHS] == 0 else pointer(raw[LENGTHS], np.int64)[b]


@inline
def is_reset(raw: Any, t: int, b: int) -> bool:
    """Whether the step at time t starts from a state of zeros."""
    return raw[RESETS] != 0 and pointer(raw[RESETS], np.uint8)[t * raw[RESETS_T] + b * raw[RESETS_B]] != 0


@inline
def time_of(raw: Any, s: int, end: int) -> int:
    """The time of a sequence's s-th step in the order of the recurrence; padding stays where it is."""
    return end - 1 - s if raw[REVERSE] != 0 and s < end else s


@inline
def fill(row: Any, width: int) -> None:
    for c in range(width):
        store(row, c, constant_like(load(row, 0), 0.0))


@inline
def copy_row(source: Any, address: int, start: int, target: Any, width: int) -> None:
    """Copies a row into the computing type, from element `start` of the array at `address`; zeros where that is 0."""
    if address == 0:
        fill(target, width)
    else:
        row = at(same_type(address, source), start)
        for c in range(width):
            store(target, c, load(row, c))


@inline
def write_state(target: Any, address: int, start: int, row: Any, width: int) -> None:
    if address != 0:
        final = at(same_type(address, target), start)
        for c in range(width):
            store(final, c, load(row, c))


def gates_row(x: Any, start: int, row: Any, width: int) -> Any:
    """The pre-activations from element `start` of x, in the computing type: where they are, or converted into `row`."""


@overload(gates_row, jit_options=OPTIONS)
def _gates_row(x: Any, start: int, row: Any, width: int) -> Any:
    def in_place(x: Any, start: int, row: Any, width: int) -> Any:
        return at(x, start)

    def converted(x: Any, start: int, row: Any, width: int) -> Any:
        given = at(x, start)
        for c in range(width):
            store(row, c, load(given, c))
        return row

    return in_place if x == row else converted


@njit(inline="always", **OPTIONS)
def forward(raw: Any, x: Any, out: Any, weights: Any, step: Any, saving_step: Any) -> None:
    """OUT, HN and CN from X, H0 and C0; where SAVED is not null, that and OLD too."""
    work = state_pointer(raw[WORK], out)
    w_hh, w_ih = same_type(raw[W_HH], weights), same_type(raw[W_IH], weights)
    b_hh, b_ih = same_type(raw[B_HH], work), same_type(raw[B_IH], work)
    hh_scales, ih_scales = same_type(raw[W_HH_SCALES], work), same_type(raw[W_IH_SCALES], work)
    hidden, gates, batch, inputs = raw[HIDDEN], raw[GATES], raw[BATCH], raw[INPUT]
    depth, width, x_depth = round_up(hidden, DEPTH), round_up(gates * hidden, PANEL), round_up(inputs, DEPTH)
    every_h, every_c = work, at(work, batch * round_up(hidden, PANEL))
    every_sum = at(every_c, batch * hidden)
    every_x = at(every_sum, batch * width)
    every_product = at(every_x, batch * x_depth)
    saved, old, blocks = same_type(raw[SAVED], work), same_type(raw[OLD], work), raw[SAVED_BLOCKS]
    task = fetch_add(raw)
    while task < raw[TASKS]:
        first, last = task * raw[ROWS], min(batch, (task + 1) * raw[ROWS])
        for b in range(first, last):
            copy_row(out, raw[H0], b * hidden, at(every_h, b * depth), hidden)
            copy_row(out, raw[C0], b * hidden, at(every_c, b * hidden), hidden)
            fill(at(every_h, b * depth + hidden), depth - hidden)
            fill(at(every_x, b * x_depth + inputs), x_depth - inputs)
        for s in range(raw[STEPS]):
            for b in range(first, last):
                end = length(raw, b)
                t = time_of(raw, s, end)
                if s < end and is_reset(raw, t, b):
                    fill(at(every_h, b * depth), hidden)
                    fill(at(every_c, b * hidden), hidden)
                if inputs != 0 and s < end:
                    copy_row(x, raw[X], t * raw[X_T] + b * raw[X_B], at(every_x, b * x_depth), inputs)
            if raw[PACKED] != 0:
                sums = at(every_sum, first * width)
                if raw[W_HH] != 0:
                    rows = at(every_h, first * depth)
                    multiply(w_hh, hh_scales, gates * hidden, depth, rows, depth, b_hh, 0, sums, width, last - first)
                if inputs != 0:
                    products, rows = at(every_product, first * width), at(every_x, first * x_depth)
                    multiply(w_ih, ih_scales, gates * hidden, x_depth, rows, x_depth, b_ih, 0, products, width, last - first)
            else:
                for b in range(first, last):
                    sums, products = at(every_sum, b * width), at(every_product, b * width)
                    multiply_rows(w_hh, gates * hidden, hidden, at(every_h, b * depth), b_hh, raw[B_HH] != 0, sums)
                    if inputs != 0:
                        multiply_rows(w_ih, gates * hidden, inputs, at(every_x, b * x_depth), b_ih, raw[B_IH] != 0, products)
            for b in range(first, last):
                end = length(raw, b)
                t = time_of(raw, s, end)
                row, out_row = t * raw[ROW_T] + b * raw[ROW_B], at(out, t * raw[OUT_T] + b * raw[OUT_B])
                saved_row, old_row = at(saved, row * blocks * hidden), at(old, row * hidden)
                if s < end:
                    x_row = at(every_product, b * width)
                    if inputs == 0:
                        x_row = gates_row(x, t * raw[X_T] + b * raw[X_B], x_row, gates * hidden)
                    h, c = at(every_h, b * depth), at(every_c, b * hidden)
                    arrays = (x_row, at(every_sum, b * width), h, c, out_row, saved_row, old_row)
                    if raw[SAVED] != 0:
                        saving_step(arrays, hidden)
                    else:
                        step(arrays, hidden)
                else:
                    fill(out_row, hidden)
                    if raw[SAVED] != 0:
                        fill(saved_row, blocks * hidden)
                        fill(old_row, hidden)
        for b in range(first, last):
            write_state(out, raw[HN], b * hidden, at(every_h, b * depth), hidden)
            write_state(out, raw[CN], b * hidden, at(every_c, b * hidden), hidden)
        task = fetch_add(raw)


@njit(inline="always", **OPTIONS)
def backward(raw: Any, d_out: Any, weights: Any, step: Any) -> None:
    """DX and DSUMS, and the initial state's gradients H0 and C0, from SAVED, OLD, OUT (its gradient), HN and CN.

    W_HH: packed W_hh^T. H0, C0, HN, CN: gradients in the computing type.
    """
    work = state_pointer(raw[WORK], d_out)
    w_hh = same_type(raw[W_HH], weights)
    hidden, gates, batch = raw[HIDDEN], raw[GATES], raw[BATCH]
    depth, width = round_up(gates * hidden, DEPTH), round_up(hidden, PANEL)
    every_h, every_c = work, at(work, batch * width)
    every_sum = at(every_c, batch * hidden)
    saved, old = same_type(raw[SAVED], work), same_type(raw[OLD], work)
    dx, d_sums = same_type(raw[DX], work), same_type(raw[DSUMS], work)
    task = fetch_add(raw)
    while task < raw[TASKS]:
        first, last = task * raw[ROWS], min(batch, (task + 1) * raw[ROWS])
        for b in range(first, last):
            fill(at(every_h, b * width), width)
            fill(at(every_sum, b * depth), depth)
        for s in range(raw[STEPS] - 1, -1, -1):
            for b in range(first, last):
                end = length(raw, b)
                t = time_of(raw, s, end)
                row = t * raw[ROW_T] + b * raw[ROW_B]
                h, c, sums = at(every_h, b * width), at(every_c, b * hidden), at(every_sum, b * depth)
                if s < end:
                    if s == end - 1:
                        copy_row(work, raw[HN], b * hidden, h, hidden)
                        copy_row(work, raw[CN], b * hidden, c, hidden)
                    d_out_row = at(d_out, t * raw[OUT_T] + b * raw[OUT_B])
                    d_row = at(dx, row * gates * hidden)
                    step(
                        (at(saved, row * raw[SAVED_BLOCKS] * hidden), at(old, row * hidden), d_out_row, h, c, d_row, sums),
                        hidden,
                    )
                    if raw[DSUMS] != 0:
                        for k in range(gates * hidden):
                            store(at(d_sums, row * gates * hidden), k, load(sums, k))
                else:
                    fill(at(dx, row * gates * hidden), gates * hidden)
                    if raw[DSUMS] != 0:
                        fill(at(d_sums, row * gates * hidden), gates * hidden)
            own = at(every_h, first * width)
            scales = same_type(raw[W_HH_SCALES], work)  # of int8 alone, which has no gradients
            multiply(w_hh, scales, hidden, depth, at(every_sum, first * depth), depth, own, width, own, width, last - first)
            for b in range(first, last):
                end = length(raw, b)
                if s < end and is_reset(raw, time_of(raw, s, end), b):
                    fill(at(every_h, b * width), hidden)
                    fill(at(every_c, b * hidden), hidden)
        for b in range(first, last):
            if length(raw, b) == 0:
                copy_row(work, raw[HN], b * hidden, at(every_h, b * width), hidden)
                copy_row(work, raw[CN], b * hidden, at(every_c, b * hidden), hidden)
            write_state(work, raw[H0], b * hidden, at(every_h, b * width), hidden)
            write_state(work, raw[C0], b * hidden, at(every_c, b * hidden), hidden)
        task = fetch_add(raw)


def kernel(kind: str, cell: str, x_dtype: str, dtype: str, weight_dtype: str) -> Callable[[Any], None]:
    """The function of "forward" or "backward", for `machine_code`; of minGRU and minLSTM, for streams, "forward" alone.

    dtypes: of x, of outputs and states, and of packed weights. It takes tasks until none is left.
    """
    x_element, element, weight_element = ELEMENTS[x_dtype], ELEMENTS[dtype], ELEMENTS[weight_dtype]

    def run(raw: Any) -> None:
        if cell == "lstm":
            step, saving_step, backward_step = cell_steps.lstm, cell_steps.lstm_saving, cell_steps.lstm_backward
        elif cell == "gru":
            step, saving_step, backward_step = cell_steps.gru, cell_steps.gru_saving, cell_steps.gru_backward
        elif cell == "rnn_tanh":
            step, saving_step, backward_step = cell_steps.tanh, cell_steps.tanh_saving, cell_steps.tanh_backward
        elif cell == "rnn_relu":
            step, saving_step, backward_step = cell_steps.relu, cell_steps.relu_saving, cell_steps.relu_backward
        elif cell == "mingru":
            step = saving_step = backward_step = cell_steps.mingru
        elif cell == "mingru_positive":
            step = saving_step = backward_step = cell_steps.mingru_positive
        elif cell == "minlstm":
            step = saving_step = backward_step = cell_steps.minlstm
        else:
            step = saving_step = backward_step = cell_steps.minlstm_positive
        weights, out = pointer(raw[W_HH], weight_element), pointer(raw[OUT], element)
        if kind == "forward":
            forward(raw, pointer(raw[X], x_element), out, weights, step, saving_step)
        else:
            backward(raw, out, weights, backward_step)

    return run
