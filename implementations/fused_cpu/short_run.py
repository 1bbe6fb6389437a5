"""Repeated short calls without gradients, of sizes known before: what a call does not change is computed once."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import cells
from pytest_ecornn.implementations._cpu.threads import c_function
from pytest_ecornn.implementations.fused_cpu import fields
from pytest_ecornn.implementations.fused_cpu.fields import B_HH, B_IH, C0, CN, H0, HN, NEXT, OUT, W_HH, W_IH, X
from pytest_ecornn.implementations.fused_cpu.layout import Packed, work_elements
from pytest_ecornn.implementations.fused_cpu.recurrence import Recurrence, Rows, States
from pytest_ecornn.implementations.fused_cpu.stack import FEW_ROWS

_empty_strided = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", None)  # undispatched: half of empty_like's time


class ShortRun:
    """Calls of few steps on unpacked weights in float32 or float64, one thread. All tensors are without gaps."""

    @staticmethod
    def is_for(x: Tensor) -> bool:
        """Whether calls of x are short."""
        return x.shape[0] * x.shape[1] <= FEW_ROWS and x.itemsize > 2

    def __init__(
        self, cell: str, hidden: int, x: Tensor, batch_first: bool, bidirectional: bool, weights: Sequence[tuple[Any, ...]]
    ):
        """x: of the sizes, dtype and layout of the calls' inputs. weights: torch.nn's, of each layer and direction; None for
        no bias. A call reads where they are.
        """
        steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
        self._directions, self._has_c, dtype, tracks = 1 + bidirectional, cell == "lstm", x.dtype, len(weights)
        width, item = self._directions * hidden, x.itemsize
        self._weights, self._has_bias = weights, weights[0][2] is not None
        self._new_state, self._new_output = _maker(x, tracks, batch, hidden), _maker(x, *x.shape[:2], width)
        self._track_bytes, self._direction_bytes = batch * hidden * item, hidden * item
        recurrences = [Recurrence(cell, hidden, dtype, dtype, batch_first, reverse, 1) for reverse in (False, True)]
        self._kernel = c_function(recurrences[0].forward_kernel)
        gates = len(cells.get(cell).gates)
        work = work_elements(batch, hidden, max(x.shape[2], width if tracks > self._directions else 0), gates)
        self._new_work = _maker(x, work)
        empty = x.new_empty(0)
        unpacked = Packed(empty, empty, empty, empty, is_packed=False)

        def template(track: int) -> array[int]:
            inputs = x.shape[2] if track < self._directions else width
            x_rows, out = (
                Rows(0, size, steps * size) if batch_first else Rows(0, batch * size, size) for size in (inputs, width)
            )
            recurrence = recurrences[track % self._directions]
            return recurrence.fields(steps, batch, batch, inputs, empty, unpacked, x_rows, out, States())

        self._templates = [template(track) for track in range(tracks)]
        self._local = threading.local()

    def _make_launches(self) -> list[tuple[Any, ...]]:
        """A thread's launch of each track: its arguments, their address, bytes from the first state and output, and weights."""
        work = self._local.work = self._new_work()
        launches = []
        for track, (template, own) in enumerate(zip(self._templates, self._weights, strict=True)):
            launch = array("q", template)
            launch[fields.WORK] = work.data_ptr()
            offsets = track * self._track_bytes, track % self._directions * self._direction_bytes
            launches.append((launch, launch.buffer_info()[0], *offsets, *own))
        return launches

    def __call__(self, module: Any, x: Tensor, hx: Any) -> tuple[Tensor, Any]:
        """Output [.., D*H] and final states, as torch.nn has them."""
        try:
            launches = self._local.launches
        except AttributeError:
            launches = self._local.launches = self._make_launches()
        has_c, has_bias, kernel, output, h0, c0 = self._has_c, self._has_bias, self._kernel, x, 0, 0
        h = self._new_state()
        hn = h.data_ptr()
        if has_c:
            c = self._new_state()
            cn = c.data_ptr()
            if hx is not None:
                h0, c0 = hx[0].data_ptr(), hx[1].data_ptr()
        elif hx is not None:
            h0 = hx.data_ptr()
        for launch, address, offset, output_offset, w_ih, w_hh, b_ih, b_hh in launches:
            if output_offset == 0:  # a layer's first direction
                x, output = output, self._new_output()
                x_address, output_address = x.data_ptr(), output.data_ptr()
            launch[NEXT], launch[X], launch[OUT] = 0, x_address, output_address + output_offset
            launch[H0], launch[HN] = h0 and h0 + offset, hn + offset
            launch[W_IH], launch[W_HH] = w_ih.data_ptr(), w_hh.data_ptr()
            if has_bias:
                launch[B_IH], launch[B_HH] = b_ih.data_ptr(), b_hh.data_ptr()
            if has_c:
                launch[C0], launch[CN] = c0 and c0 + offset, cn + offset
            kernel(address)
        return output, (h, c) if has_c else h


def _maker(like: Tensor, *shape: int) -> Callable[[], Tensor]:
    """A function that makes an uninitialised tensor without gaps. A dispatch mode that is active now sees it do so."""
    strides = like.new_empty(shape, device="meta").stride()
    if _empty_strided is None or torch._C._len_torch_dispatch_stack():
        return partial(torch.empty_strided, shape, strides, dtype=like.dtype, device="cpu")
    return partial(_empty_strided, shape, strides, like.dtype)
