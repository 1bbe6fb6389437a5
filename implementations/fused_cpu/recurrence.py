"""One layer in one direction: how its sequences are cut in tasks, and how kernels are launched. `ops.py` differentiates it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.contract import cells
from pytest_ecornn.implementations._cpu.machine_code import CpuKernel
from pytest_ecornn.implementations._cpu.threads import run_on_threads
from pytest_ecornn.implementations.fused_cpu.layout import SAVED, Packed, work_elements

_KERNELS = f"{__package__}.numba_kernels"
_KERNEL_FILES = tuple(
    Path(__file__).with_name(f"{name}.py") for name in ("numba_kernels", "cell_steps", "fields", "layout", "panels")
)
_MAX_ROWS = 16  # sequences of a task: they share what is read of W_hh
_FEW_OPERATIONS = 2e6  # up to which waking threads costs more than they save


class States(NamedTuple):
    """Addresses of initial and final states, or of their gradients, [B, H] each; 0 for none."""

    h0: int = 0
    c0: int = 0
    hn: int = 0
    cn: int = 0


class Rows(NamedTuple):
    """The address of an array with a row for each step and sequence, and the elements between rows."""

    address: int
    step: int
    sequence: int


class Saved(NamedTuple):
    """What waits for the backward pass, [.., .., S*H], and the states that steps start from, [.., .., H], laid out as x."""

    values: Tensor
    old: Tensor


@dataclass(frozen=True)
class Recurrence:
    """x_dtype: of pre-activations, or of inputs. dtype: of outputs and states. threads: at most so many run it.

    weight_dtype: of packed weights, None for the computing type. int8 has scales beside it.
    """

    cell: str
    hidden: int
    x_dtype: torch.dtype
    dtype: torch.dtype
    batch_first: bool
    reverse: bool
    threads: int
    weight_dtype: torch.dtype | None = None

    @cached_property
    def compute(self) -> torch.dtype:
        return torch.promote_types(self.dtype, torch.float32)

    @cached_property
    def gates(self) -> int:
        return len(cells.get(self.cell).gates)

    @cached_property
    def forward_kernel(self) -> int:
        """The address of the kernel, compiled at first use."""
        return self.kernel("forward").address()

    @cached_property
    def backward_kernel(self) -> int:
        return self.kernel("backward").address()

    def kernel(self, kind: str) -> CpuKernel:
        """The kernel of "forward" or "backward"."""
        dtypes = self.dtype if kind == "backward" else self.x_dtype, self.dtype, self.weight_dtype or self.compute
        names = (str(dtype).removeprefix("torch.") for dtype in dtypes)
        return CpuKernel(_KERNELS, (kind, self.cell, *names), _KERNEL_FILES)

    def rows(self, tensor: Tensor) -> Rows:
        strides = tensor.stride()
        step, sequence = (strides[1], strides[0]) if self.batch_first else (strides[0], strides[1])
        return Rows(tensor.data_ptr(), step, sequence)

    def forward(
        self,
        x: Tensor,
        packed: Packed,
        states: States,
        out: Rows,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
        saved: Saved | None = None,
    ) -> None:
        """Writes `out`, final states and `saved`.

        x: [T, B, G*H] or [B, T, G*H], or inputs where `packed` has W_ih; any strides, but 1 in its last dimension.
        lengths: int64 [B], contiguous. resets: bool, laid out as x without its last dimension.
        """
        self._launch(self.forward_kernel, x, self.rows(x), packed, states, out, lengths, resets, saved)

    def backward(
        self,
        d_out: Tensor,
        w_hh: Tensor,
        states: States,
        saved: Saved,
        d_x: Tensor,
        d_sums: Tensor | None,
        lengths: Tensor | None,
        resets: Tensor | None,
    ) -> None:
        """Writes the gradients of pre-activations, of W_hh h + b_hh where they differ (GRU), and of the initial states.

        w_hh: W_hh^T, packed. states: their gradients, in the computing type.
        """
        gradients = d_x.data_ptr(), 0 if d_sums is None else d_sums.data_ptr()
        self._launch(
            self.backward_kernel,
            d_x,
            Rows(0, 0, 0),
            Packed(w_hh, w_hh),
            states,
            self.rows(d_out),
            lengths,
            resets,
            saved,
            gradients,
        )

    def _launch(
        self,
        kernel: int,
        x: Tensor,
        x_rows: Rows,
        packed: Packed,
        states: States,
        out: Rows,
        lengths: Tensor | None,
        resets: Tensor | None,
        saved: Saved | None,
        gradients: tuple[int, int] = (0, 0),
    ) -> None:
        steps, batch = (x.shape[1], x.shape[0]) if self.batch_first else (x.shape[0], x.shape[1])
        inputs, rows = 0 if packed.w_ih is None else x.shape[2], self.rows_of_task(batch)
        work = x.new_empty(work_elements(batch, self.hidden, inputs, self.gates), dtype=self.compute)
        fields = self.fields(
            steps, batch, rows, inputs, work, packed, x_rows, out, states, lengths, resets, saved, gradients
        )  # fmt: skip
        operations = 2.0 * steps * batch * self.gates * self.hidden * (self.hidden + inputs)
        threads = 1 if operations <= _FEW_OPERATIONS else min(-(-batch // rows), self.threads)
        run_on_threads(kernel, fields, threads)

    def fields(
        self,
        steps: int,
        batch: int,
        rows: int,
        inputs: int,
        work: Tensor,
        packed: Packed,
        x_rows: Rows,
        out: Rows,
        states: States,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
        saved: Saved | None = None,
        gradients: tuple[int, int] = (0, 0),
    ) -> array[int]:
        """What a launch is told, in the order of fields.py. rows: sequences of a task."""
        row_step, row_sequence = (1, steps) if self.batch_first else (batch, 1)
        reset_rows = Rows(0, 0, 0) if resets is None else self.rows(resets)
        return array("q", (
            0, -(-batch // rows), rows, steps, batch, self.hidden, inputs, self.gates, SAVED.get(self.cell, 0), self.reverse,
            work.data_ptr(), address(packed.w_hh), address(packed.w_ih), address(packed.b_hh), address(packed.b_ih),
            row_step, row_sequence, *x_rows, *out, *states,
            *((0, 0) if saved is None else (saved.values.data_ptr(), saved.old.data_ptr())), *gradients,
            address(lengths), *reset_rows, packed.is_packed, address(packed.w_hh_scales), address(packed.w_ih_scales),
        ))  # fmt: skip

    def rows_of_task(self, batch: int) -> int:
        """The sequences of a task: every thread gets as many tasks as the others, of few enough rows."""
        tasks = self.threads * -(-batch // (_MAX_ROWS * self.threads))
        rows = -(-batch // tasks)
        return rows if rows <= 4 else -(-rows // 4) * 4  # a product takes four rows at a time


def address(tensor: Tensor | None) -> int:
    """0 for None."""
    return 0 if tensor is None else tensor.data_ptr()
