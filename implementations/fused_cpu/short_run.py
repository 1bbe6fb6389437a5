"""Repeated short calls without gradients, of sizes known before: what a call does not change is computed once."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import cells
from pytest_ecornn.implementations._common.recurrent_problem import PARAMETERS
from pytest_ecornn.implementations._cpu.threads import c_function
from pytest_ecornn.implementations.fused_cpu import fields
from pytest_ecornn.implementations.fused_cpu.layout import FEW_SEQUENCES, Packed, work_elements
from pytest_ecornn.implementations.fused_cpu.recurrence import Recurrence, Rows, States
from pytest_ecornn.implementations.fused_cpu.stack import FEW_ROWS


class ShortRun:
    """Calls of few steps on unpacked weights in float32 or float64, one thread. All tensors are without gaps."""

    @staticmethod
    def is_for(x: Tensor, batch_first: bool) -> bool:
        """Whether calls of x are short."""
        steps_batch = x.shape[0] * x.shape[1]
        return steps_batch <= FEW_ROWS and x.shape[0 if batch_first else 1] <= FEW_SEQUENCES and x.itemsize > 2

    def __init__(self, cell: str, hidden: int, x: Tensor, batch_first: bool, bidirectional: bool, tracks: int):
        """x: of the sizes, dtype and layout of the calls' inputs. tracks: layers times directions."""
        steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
        self._directions, self._has_c, dtype = 1 + bidirectional, cell == "lstm", x.dtype
        width, item = self._directions * hidden, x.itemsize
        self._output, self._state, self._dtype = (*x.shape[:2], width), (tracks, batch, hidden), dtype
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

        self._local = threading.local()
        self._templates = [template(track) for track in range(tracks)]

    def _work_address(self) -> int:
        """The memory that launches work in, of each thread its own."""
        local = self._local
        try:
            address: int = local.address
        except AttributeError:
            local.work = torch.empty(self._work, dtype=self._dtype)
            address = local.address = local.work.data_ptr()
        return address

    def __call__(self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Any]) -> tuple[Tensor, ...]:
        """Output [.., D*H] and final states [L*D, B, H]. weights: torch.nn's, of each track; None for no bias."""
        dtype, size, kernel, at = self._dtype, self._track_bytes, self._kernel, 0
        h = torch.empty(self._state, dtype=dtype)
        c = torch.empty(self._state, dtype=dtype) if self._has_c else None
        work = self._work_address()
        hn, cn, h0, c0 = h.data_ptr(), 0 if c is None else c.data_ptr(), 0, 0
        output = x
        if states:
            h0, c0 = states[0].data_ptr(), states[1].data_ptr() if self._has_c else 0
        for track, template in enumerate(self._templates):
            direction = track % self._directions
            if direction == 0:
                x, output = output, torch.empty(self._output, dtype=dtype)
            launch, (w_ih, w_hh, b_ih, b_hh) = array("q", template), weights[at : at + len(PARAMETERS)]
            launch[fields.X], launch[fields.OUT] = x.data_ptr(), output.data_ptr() + direction * self._direction_bytes
            launch[fields.WORK], launch[fields.W_IH], launch[fields.W_HH] = work, w_ih.data_ptr(), w_hh.data_ptr()
            launch[fields.B_IH], launch[fields.B_HH] = (0, 0) if b_ih is None else (b_ih.data_ptr(), b_hh.data_ptr())
            launch[fields.H0], launch[fields.C0], launch[fields.HN], launch[fields.CN] = h0, c0, hn, cn
            kernel(launch.buffer_info()[0])
            at, h0, c0, hn, cn = at + len(PARAMETERS), h0 and h0 + size, c0 and c0 + size, hn + size, cn and cn + size
        return (output, h) if c is None else (output, h, c)
