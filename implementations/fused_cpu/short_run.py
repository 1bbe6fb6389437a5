"""Repeated short calls without gradients, of sizes known before: what a call does not change is computed once."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from typing import Any

from torch import Tensor, empty_like

from pytest_ecornn.contract import cells
from pytest_ecornn.implementations._cpu.threads import c_function
from pytest_ecornn.implementations.fused_cpu import fields
from pytest_ecornn.implementations.fused_cpu.fields import B_HH, B_IH, C0, CN, H0, HN, NEXT, OUT, W_HH, W_IH, X
from pytest_ecornn.implementations.fused_cpu.layout import Packed, work_elements
from pytest_ecornn.implementations.fused_cpu.recurrence import Recurrence, Rows, States
from pytest_ecornn.implementations.fused_cpu.stack import FEW_ROWS


class ShortRun:
    """Calls of few steps on unpacked weights in float32 or float64, one thread. All tensors are without gaps."""

    @staticmethod
    def is_for(x: Tensor) -> bool:
        """Whether calls of x are short."""
        return x.shape[0] * x.shape[1] <= FEW_ROWS and x.itemsize > 2

    def __init__(self, cell: str, hidden: int, x: Tensor, batch_first: bool, bidirectional: bool, tracks: int):
        """x: of the sizes, dtype and layout of the calls' inputs. tracks: layers times directions."""
        steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
        self._directions, self._has_c, dtype = 1 + bidirectional, cell == "lstm", x.dtype
        width, item = self._directions * hidden, x.itemsize
        self._like_state, self._like_output = x.new_empty(tracks, batch, hidden), x.new_empty(*x.shape[:2], width)
        self._track_bytes, self._direction_bytes = batch * hidden * item, hidden * item
        recurrences = [Recurrence(cell, hidden, dtype, dtype, batch_first, reverse, 1) for reverse in (False, True)]
        self._kernel = c_function(recurrences[0].forward_kernel)
        gates = len(cells.get(cell).gates)
        self._work = work_elements(batch, hidden, max(x.shape[2], width if tracks > self._directions else 0), gates)
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

    def _own_launches(self) -> list[tuple[array[int], int]]:
        """A thread's arguments of each track's launch, and their addresses."""
        try:
            launches: list[tuple[array[int], int]] = self._local.launches
        except AttributeError:
            local = self._local
            local.work = self._like_state.new_empty(self._work)
            copies = [array("q", template) for template in self._templates]
            launches = local.launches = [(copy, copy.buffer_info()[0]) for copy in copies]
            for launch in copies:
                launch[fields.WORK] = local.work.data_ptr()
        return launches

    def __call__(self, x: Tensor, hx: Any, weights: Sequence[Any]) -> tuple[Tensor, Any]:
        """Output [.., D*H] and final states, as torch.nn has them. weights: torch.nn's, of each track; None for no bias."""
        size, kernel, place = self._track_bytes, self._kernel, 0
        h, c = empty_like(self._like_state), empty_like(self._like_state) if self._has_c else None
        hn, cn, h0, c0 = h.data_ptr(), 0 if c is None else c.data_ptr(), 0, 0
        if hx is not None:
            h0, c0 = (hx.data_ptr(), 0) if c is None else (hx[0].data_ptr(), hx[1].data_ptr())
        output, direction = x, 0
        for launch, address in self._own_launches():
            if direction == 0:
                x, output = output, empty_like(self._like_output)
                x_address, output_address = x.data_ptr(), output.data_ptr()
            w_ih, w_hh, b_ih, b_hh = weights[place : place + 4]
            launch[NEXT], launch[X], launch[OUT] = 0, x_address, output_address + direction * self._direction_bytes
            launch[W_IH], launch[W_HH] = w_ih.data_ptr(), w_hh.data_ptr()
            launch[B_IH], launch[B_HH] = (0, 0) if b_ih is None else (b_ih.data_ptr(), b_hh.data_ptr())
            launch[H0], launch[C0], launch[HN], launch[CN] = h0, c0, hn, cn
            kernel(address)
            place, h0, c0, hn, cn = place + 4, h0 and h0 + size, c0 and c0 + size, hn + size, cn and cn + size
            direction = (direction + 1) % self._directions
        return output, h if c is None else (h, c)
