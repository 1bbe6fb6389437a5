"""The kernels of persistent_gpu for T = 1, where reading the weights is all the work.

Forward the kernel computes the input product too, so that a layer and direction is one launch. It reads the weights once for
each 8 sequences. Two GEMMs and a step read them once, and took longer wherever both were timed. Backward the kernel reads no
weights: products follow, those with W_hh only where initial states are given.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import ceil, gcd
from typing import NamedTuple

import torch

from pytest_ecornn.implementations._common.recurrent_problem import GATES, NN_CELLS, Device, MathMode
from pytest_ecornn.implementations._cuda.kernel import BoundLaunch, Kernel, storage_macro
from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations.persistent_gpu import kernel as persistent_kernel
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape, status_of

MAX_SEQUENCES = 16  # of any layer
_MAX_SEQUENCES_OF_SMALL = 32  # of a layer with at most _MOST_BYTES of weights
_MAX_SEQUENCES_OF_FEW_READS = 128  # of a layer that reads at most _MOST_BYTES in all
_MOST_BYTES = 2**26  # all that was timed on an H100 up to there was faster than two GEMMs and a step
_SOURCE = persistent_kernel.KERNELS / "single_step_forward.cu"
_BACKWARD_SOURCE = persistent_kernel.KERNELS / "single_step_backward.cu"
_TILE, _WARPS, _ROWS, _MOST_ROW_TILES = 8, 8, 16, 4  # sequences; rows of the tensor cores, that a block has at most
_MOST_WIDE = 16  # bytes that are read at once
_ADDRESSES = (  # the first fields of the kernel's Params
    "x", "weight_ih", "weight_hh", "bias_ih", "bias_hh", "h0", "c0", "output", "h_n", "c_n", "saved_gates", "saved_cells",
)  # fmt: skip
MAX_BACKWARD_SEQUENCES = 128  # that a block adds up for the biases
_UNITS, _MIN_THREADS, _MAX_THREADS = 16, 256, 1024  # of a block backward
_ZERO_BYTES = 64  # that a thread writes
_BACKWARD_ADDRESSES = (
    "saved_gates", "saved_cells", "output", "h0", "c0", "d_output", "d_h_n", "d_c_n", "d_gates", "d_recurrent", "d_h0", "d_c0",
    "d_bias_ih", "d_bias_hh", "d_weight_hh",
)  # fmt: skip


def is_applicable(shape: Shape, widths: Iterable[int], dtype: torch.dtype) -> bool:
    """Whether this kernel runs layers of those sizes that have an input product to compute.

    widths: of all layers' inputs.
    """
    if shape.steps != 1 or shape.batch > _MAX_SEQUENCES_OF_FEW_READS:
        return False
    if shape.batch <= MAX_SEQUENCES:
        return True
    weight_bytes = GATES[shape.cell] * shape.hidden * (shape.hidden + max(widths)) * dtype.itemsize
    reads = 1 if shape.batch <= _MAX_SEQUENCES_OF_SMALL else ceil(shape.batch / _TILE)
    return reads * weight_bytes <= _MOST_BYTES


class SingleStepConfig(NamedTuple):
    """Each block has `units` hidden units of 8 sequences."""

    cell: str
    inputs: int
    hidden: int
    batch: int
    arithmetic: MathMode
    units: int = 1

    @property
    def blocks(self) -> int:
        """Blocks for each 8 sequences."""
        return ceil(self.hidden / self.units)

    @property
    def launch(self) -> Launch:
        m_tiles = ceil(GATES[self.cell] * self.units / _ROWS)
        shared_bytes = 2 * _WARPS * m_tiles * _ROWS * (_TILE + 1) * 4
        return Launch(self.blocks * ceil(self.batch / _TILE), 32 * _WARPS, shared_bytes)

    @property
    def width(self) -> int:
        """Bytes that are read at once: as many as divide all rows."""
        size = self.arithmetic.bytes
        return gcd(self.inputs * size, self.hidden * size, _MOST_WIDE)

    def macros(self, spec: KernelSpec) -> tuple[tuple[str, str], ...]:
        values = {"CELL": NN_CELLS.index(self.cell), "HIDDEN": self.hidden, "INPUTS": self.inputs, storage_macro(spec.dtype): 1}
        values |= {
            "SHARED_BYTES": self.launch.shared_bytes,
            "UNITS": self.units,
            "BLOCKS": self.blocks,
            "LOAD_BYTES": self.width,
            "USE_3XTF32": int(self.arithmetic.is_3xtf32),
            "SAVE_GATES": int(spec.saves_for_backward),
        }
        return tuple((name, str(value)) for name, value in values.items())

    def __str__(self) -> str:
        return f"one step alone: {self.launch.grid} blocks, {self.units} units a block"


def select_single_step(config: SingleStepConfig, device: Device) -> SingleStepConfig:
    """Chooses the fewest units a block with which all blocks run at once; they fill whole M tiles."""
    for tiles in range(1, _MOST_ROW_TILES + 1):
        config = config._replace(units=max(1, tiles * _ROWS // GATES[config.cell]))
        if config.launch.grid <= device.num_sms:
            break
    return config


def make_kernel(config: SingleStepConfig, spec: KernelSpec) -> Kernel:
    """The kernel of a form, which takes its arguments by name."""
    arguments = persistent_kernel.params((*_ADDRESSES, "output_sequence", "batch"))
    return Kernel(
        _SOURCE, "persistent_once", config.macros(spec), arguments, spec.device, config.launch.shared_bytes, is_lazy=True
    )


class SingleStepKernel:
    """Launches the kernel; a call passes the addresses of its arrays. width: bytes to which `aligned` aligns what it reads.

    output_sequence: the stride of the output's rows.
    """

    def __init__(self, cell: str, inputs: int, hidden: int, batch: int, spec: KernelSpec, output_sequence: int):
        """Raises ValueError for what does not run."""
        persistent_kernel.check(Shape(cell, 1, batch, hidden, batch_first=False), spec)
        config = SingleStepConfig(cell, inputs, hidden, batch, spec.arithmetic)
        self._status = status_of(spec.device)
        self.form = select_single_step(config, Device.of(spec.device))
        self.width = self.form.width
        integers = {"output_sequence": output_sequence, "batch": batch}
        self.kernel = make_kernel(self.form, spec)
        self._run = self.kernel.at(self.form.launch, _ADDRESSES, **integers)

    def __call__(self, addresses: tuple[int, ...]) -> None:
        """Launches the kernel. addresses: of its arrays in its order, 0 for none."""
        self._status.check()  # of an earlier launch, whose states it may continue
        self._run(addresses)


get_single_step_kernel = lru_cache(maxsize=4096)(SingleStepKernel)


class SingleStepBackwardConfig(NamedTuple):
    """Each block has 16 hidden units of all sequences. writes_zeros: of weight_hh's gradient, too."""

    cell: str
    hidden: int
    batch: int
    writes_zeros: bool = False

    def launch(self, dtype: torch.dtype) -> Launch:
        gates = GATES[self.cell]
        threads = min(_MAX_THREADS, max(_MIN_THREADS, ceil(self.batch * _UNITS / 32) * 32))
        zero_bytes = self.writes_zeros * gates * self.hidden**2 * dtype.itemsize
        blocks = max(ceil(self.hidden / _UNITS), ceil(zero_bytes / (threads * _ZERO_BYTES)))
        sums = 4 if self.cell == "gru" else gates
        return Launch(blocks, threads, 4 * _MAX_THREADS // 32 * sums * _UNITS)

    def macros(self, dtype: torch.dtype) -> tuple[tuple[str, str], ...]:
        sizes = {"CELL": NN_CELLS.index(self.cell), "HIDDEN": self.hidden, "SHARED_BYTES": self.launch(dtype).shared_bytes}
        return tuple((name, str(value)) for name, value in {**sizes, storage_macro(dtype): 1}.items())


def make_backward_kernel(form: SingleStepBackwardConfig, spec: KernelSpec) -> Kernel:
    """The kernel of a form, which takes its arguments by name."""
    arguments = persistent_kernel.params((*_BACKWARD_ADDRESSES, "output_sequence", "d_output_sequence", "batch"))
    shared_bytes = form.launch(spec.dtype).shared_bytes
    return Kernel(
        _BACKWARD_SOURCE, "persistent_once_backward", form.macros(spec.dtype), {**arguments, "blocks": int}, spec.device,
        shared_bytes, is_lazy=True,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def get_single_step_backward(
    form: SingleStepBackwardConfig, spec: KernelSpec, output_sequence: int, d_output_sequence: int
) -> BoundLaunch:
    """The launch of a pseudo-layer's backward pass, to be called with the addresses of its arrays, 0 for none.

    output_sequence, d_output_sequence: strides of the rows of these.
    """
    launch = form.launch(spec.dtype)
    strides = {"output_sequence": output_sequence, "d_output_sequence": d_output_sequence}
    made = make_backward_kernel(form, spec)
    return made.at(launch, _BACKWARD_ADDRESSES, **strides, batch=form.batch, blocks=launch.grid)
