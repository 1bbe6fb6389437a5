"""One layer in one direction as a scan: how it is cut in tasks and launched on threads. `ops.py` differentiates it.

Time is cut in chunks (Blelloch, "Prefix sums and their applications", 1990) only where sequences and channels are too few.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.contract import cells
from pytest_ecornn.implementations._cpu.machine_code import CpuKernel
from pytest_ecornn.implementations._cpu.threads import run_on_threads

_KERNELS = f"{__package__}.numba_kernels"
_KERNEL_FILES = tuple(Path(__file__).with_name(f"{name}.py") for name in ("numba_kernels", "numba_gates"))
_LINE_CHANNELS = 32  # a tile's width is a multiple: whole cache lines of every dtype
_WIDEST_TILE = 1024  # its state stays in the first-level cache
_SHORTEST_CHUNK = 64
_SMALL = 2**14  # elements of the output, up to which waking threads costs more than they save
_STREAMED_BYTES = 2**24  # an output of this size would drive out of the caches what is still wanted


class Plan(NamedTuple):
    """tile: channels of a task. chunks: parts of the time axis."""

    tile: int
    chunks: int


def make_plan(steps: int, batch: int, channels: int, threads: int) -> Plan:
    """How to cut [T, B, H] in tasks: channels in tiles until the threads share evenly, time only where that is not enough.

    A scan in chunks reads its input twice, so it is not worth while for fewer than three times the tasks.
    """
    most = -(-channels // _LINE_CHANNELS)
    tiles = -(-channels // _WIDEST_TILE)
    while tiles < most and (batch * tiles) % threads and batch * tiles < 4 * threads:
        tiles += 1
    tile = min(channels, -(-channels // tiles // _LINE_CHANNELS) * _LINE_CHANNELS)
    chunks = min(threads // (batch * -(-channels // tile)), steps // _SHORTEST_CHUNK)
    return Plan(tile, chunks if chunks >= 3 else 1)


@cache
def _kernel(kind: str, cell: str, *dtypes: torch.dtype) -> int:
    """The address of a kernel, compiled at first use. dtypes: of pre-activations and of output."""
    names = (str(dtype).removeprefix("torch.") for dtype in dtypes)
    return CpuKernel(_KERNELS, (kind, cell, *names), _KERNEL_FILES).address()


@dataclass(frozen=True)
class Scan:
    """One layer in one direction over pre-activations [T, B, G*H] or [B, T, G*H] (`batch_first`) of dtype `pre`."""

    cell: str
    pre: torch.dtype
    dtype: torch.dtype
    batch_first: bool
    reverse: bool
    threads: int
    tiling: Plan

    @cached_property
    def compute(self) -> torch.dtype:
        return torch.promote_types(self.dtype, torch.float32)

    def compile(self, training: bool) -> None:
        for kind in ("forward", "backward")[: 2 if training else 1]:
            _kernel(kind, self.cell, self.pre, self.dtype)
            if self.tiling.chunks > 1:
                _kernel(kind + "_summary", self.cell, self.pre, self.dtype)

    def forward(
        self,
        x: Tensor,
        first: Tensor | None,
        lengths: Tensor | None,
        resets: Tensor | None = None,
        training: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output, laid out as x, final state [B, H], and the output before it was rounded (where `training` is asked for).

        x: any strides, but 1 between its last dimension's elements. resets: bool, laid out as x without its last dimension.
        """
        where = _Shape.of(self, x, lengths, resets)
        output = x.new_empty((*x.shape[:2], where.hidden), dtype=self.dtype)
        given = x.new_zeros(where.state, dtype=self.compute) if first is None else first.to(self.compute)
        # Gradients hold differences of candidate and state: rounded to 16 bits, little would be left of some.
        kept = torch.empty_like(output, dtype=self.compute) if training and self.dtype != self.compute else output
        also = {} if kept is output else {"kept": kept}
        ends = self._run("forward", where, given, x=x, out=output, **also)
        return output, ends.to(self.dtype), kept

    def backward(
        self,
        x: Tensor,
        initial: Tensor | None,
        kept: Tensor,
        lengths: Tensor | None,
        resets: Tensor | None,
        d_output: Tensor | None,
        d_final: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Gradients of x (contiguous) and of the initial state, in the dtype in which the state is carried."""
        where = _Shape.of(self, x, lengths, resets)
        if d_output is None:
            d_output = kept.new_zeros(where.hidden, dtype=self.dtype).expand(kept.shape)
        elif d_output.stride(-1) != 1:
            d_output = d_output.contiguous()
        initial = kept.new_zeros(where.state) if initial is None else initial.to(self.compute).contiguous()
        given = x.new_zeros(where.state, dtype=self.compute) if d_final is None else d_final.to(self.compute)
        d_x = x.new_empty(x.shape)
        also = {} if resets is None else {"zeros": initial.new_zeros(where.hidden)}
        d_initial = self._run("backward", where, given, x=x, kept=kept, first=initial, dout=d_output, dx=d_x, **also)
        return d_x, d_initial

    def _run(self, kind: str, where: _Shape, given: Tensor, **tensors: Tensor) -> Tensor:
        """Scans from the state `given` [B, H]; returns the state at the other end."""
        chunks = self.tiling.chunks
        if chunks == 1:
            state = given.clone(memory_format=torch.contiguous_format)
            self._launch(kind, where, tensors | {"state": state})
            return state
        partial = given.new_zeros(chunks, *where.state)
        decay = torch.ones_like(partial)
        self._launch(kind + "_summary", where, tensors | {"state": partial, "decay": decay})
        is_reset = None if where.resets is None else decay.signbit()
        # A product of keeps that underflows must not turn an infinite state into NaN.
        decay.clamp_(min=torch.finfo(decay.dtype).smallest_normal)
        offsets = torch.empty_like(partial)
        task_order = range(chunks) if kind == "forward" else range(chunks - 1, -1, -1)
        for chunk in task_order:
            offsets[chunk] = given
            passed = given if is_reset is None else given.masked_fill(is_reset[chunk], 0.0)
            given = decay[chunk] * passed + partial[chunk]
        self._launch(kind, where, tensors | {"state": offsets})
        return offsets[task_order[-1]]

    def _launch(self, kind: str, where: _Shape, tensors: dict[str, Tensor]) -> None:
        tile, chunks = self.tiling
        tasks = chunks * where.batch * -(-where.hidden // tile)
        streamed = where.rows * where.hidden * self.dtype.itemsize >= _STREAMED_BYTES
        lengths = 0 if where.lengths is None else where.lengths.data_ptr()
        # In the order of `numba_kernels.STEPS` and what follows it.
        integers = [0, tasks, where.steps, where.batch, where.hidden, where.gates, int(self.reverse), lengths]
        integers += [tile, -(-where.steps // chunks), int(streamed)]
        for name in ("x", "out", "dout", "dx"):
            tensor = tensors.get(name, tensors.get("kept") if name == "out" else None)
            integers += (0, 0, 0) if tensor is None else (tensor.data_ptr(), *self._row_strides(tensor))
        vectors = ("state", "decay", "first", "kept", "zeros")
        integers += [tensors[name].data_ptr() if name in tensors else 0 for name in vectors]
        integers += (0, 0, 0) if where.resets is None else (where.resets.data_ptr(), *self._row_strides(where.resets))
        threads = 1 if where.rows * where.hidden <= _SMALL else min(tasks, self.threads)
        run_on_threads(_kernel(kind, self.cell, self.pre, self.dtype), array("q", integers), threads)

    def _row_strides(self, tensor: Tensor) -> tuple[int, int]:
        """Strides from a time step to the next, and from a sequence to the next."""
        return (tensor.stride(1), tensor.stride(0)) if self.batch_first else (tensor.stride(0), tensor.stride(1))


class _Shape(NamedTuple):
    steps: int
    batch: int
    hidden: int
    gates: int
    lengths: Tensor | None
    resets: Tensor | None

    @classmethod
    def of(cls, scan: Scan, x: Tensor, lengths: Tensor | None, resets: Tensor | None) -> _Shape:
        steps, batch = (x.shape[1], x.shape[0]) if scan.batch_first else (x.shape[0], x.shape[1])
        gates = len(cells.get(scan.cell).gates)
        lengths = None if lengths is None else lengths.contiguous()
        return cls(steps, batch, x.shape[2] // gates, gates, lengths, resets)

    @property
    def state(self) -> tuple[int, int]:
        return self.batch, self.hidden

    @property
    def rows(self) -> int:
        return self.steps * self.batch
