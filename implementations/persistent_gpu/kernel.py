"""persistent_gpu's kernels, of one layer in one direction: their compile-time settings, arguments and launches."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common.recurrent_problem import GATES, NN_CELLS, Device, MathMode, ProblemSize
from pytest_ecornn.implementations._cuda.compile import skip_reason
from pytest_ecornn.implementations._cuda.kernel import Kernel, storage_macro
from pytest_ecornn.implementations._cuda.memory import address, empty
from pytest_ecornn.implementations.persistent_gpu.blocks.config import BlockConfig
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.implementations.persistent_gpu.heuristics import fits_both_directions, select_config
from pytest_ecornn.implementations.persistent_gpu.wgmma.config import WgmmaConfig

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_THREADS, _PRODUCT_ROWS, _PRODUCT_COLUMNS = 256, 64, 16  # threads that compute an input product together; its size
WATCHDOG_NS = 4_000_000_000
MOST_FUSED_ROWS, MOST_FUSED_INPUTS = 16, 1024  # rows of x that a block multiplies at once; inputs where H is small
KERNELS = Path(__file__).parent / "kernels"
_SOURCES = {False: KERNELS / "cluster_forward.cu", True: KERNELS / "cluster_backward.cu"}
_GRID_SOURCES = {False: KERNELS / "grid_forward.cu", True: KERNELS / "grid_backward.cu"}
_NTILED_SOURCE = KERNELS / "grid_forward_ntiled.cu"
_BLOCK_KERNELS = Path(__file__).parent / "blocks" / "kernels"
_BLOCK_SOURCES = {False: _BLOCK_KERNELS / "block_forward.cu", True: _BLOCK_KERNELS / "block_backward.cu"}
_WGMMA_SOURCES = {False: KERNELS / "wgmma" / "wgmma_forward.cu", True: KERNELS / "wgmma" / "wgmma_backward.cu"}


class Shape(NamedTuple):
    """Sizes of one layer in one direction. Its input product is [T, B, G*H], or [B, T, G*H] with `batch_first`."""

    cell: str
    steps: int
    batch: int
    hidden: int
    batch_first: bool

    @property
    def gate_width(self) -> int:
        """Pre-activations of a step and sequence."""
        return GATES[self.cell] * self.hidden

    @property
    def row_strides(self) -> dict[str, int]:
        step, sequence = (1, self.steps) if self.batch_first else (self.batch, 1)
        return {"row_step": step, "row_sequence": sequence}


class KernelSpec(NamedTuple):
    """Compile-time settings of a kernel, beside the shape.

    tf32: products of float32 are in TF32. saves_for_backward: saves gates and cells. lengths: sequences have their own lengths.
    inputs: the width of x, whose product the kernel computes; 0 where the product is an argument.
    """

    dtype: torch.dtype
    device: torch.device
    tf32: bool = False
    is_backward: bool = False
    saves_for_backward: bool = False
    lengths: bool = False
    inputs: int = 0

    @classmethod
    def of(cls, case: Case, device: torch.device) -> KernelSpec:
        """The spec of a case's forward pass."""
        dtype, tf32 = getattr(torch, case.dtype), case.precision == "tf32"
        return cls(dtype, device, tf32, saves_for_backward=case.training, lengths=case.ragged)

    @property
    def arithmetic(self) -> MathMode:
        return MathMode.of(str(self.dtype).removeprefix("torch."), "tf32" if self.tf32 else "ieee")

    @property
    def backward(self) -> KernelSpec:
        """The spec of the backward pass that follows a forward pass of this spec."""
        return KernelSpec(self.dtype, self.device, self.tf32, is_backward=True)

    def problem(self, cell: str, hidden: int, batch: int) -> ProblemSize:
        return ProblemSize(cell, hidden, batch, self.arithmetic, self.is_backward)


def is_fused(steps: int, batch: int, inputs: int | None, hidden: int) -> bool:
    """Whether layers of those sizes that need no gradients compute their input products in the launch of the steps.

    A block multiplies so few rows by its weights in one pass. With more rows, or many weights for so few blocks, a GEMM takes
    less time. inputs: of the first layer, None where its product is given.
    """
    width = hidden if inputs is None else inputs  # of the first product to compute
    return steps * batch <= MOST_FUSED_ROWS and 0 < width <= max(MOST_FUSED_INPUTS, 2 * hidden)


def shared_bytes_of(spec: KernelSpec, form: Form) -> int:
    """Bytes of shared memory of a block. An input product's sums use it before anything else (kernels/input_gemm.cuh)."""
    sum_bytes = 4 * _THREADS // 32 * _PRODUCT_ROWS * (_PRODUCT_COLUMNS + 1)
    return max(form.shared_bytes, form.launch.block // _THREADS * sum_bytes) if spec.inputs else form.shared_bytes


def width_of(spec: KernelSpec, form: Form) -> int:
    """Bytes of weights and of x that are read at once: as many as divide all rows."""
    return gcd(form.width, spec.inputs * spec.dtype.itemsize)


def macros(spec: KernelSpec, form: Form) -> tuple[tuple[str, str], ...]:
    """The macros with which the source is compiled."""
    problem = form.problem
    values = {"CELL": NN_CELLS.index(problem.cell), "HIDDEN": problem.hidden, storage_macro(spec.dtype): 1, **form.macros}
    values |= {"SAVE_GATES": int(spec.saves_for_backward), "LENGTHS": int(spec.lengths), "WATCHDOG_NS": WATCHDOG_NS}
    if not spec.is_backward:
        values["LOAD_BYTES"] = width_of(spec, form)
    if spec.inputs:
        values |= {"INPUTS": spec.inputs, "SHARED_BYTES": shared_bytes_of(spec, form)}
    return tuple((name, str(value)) for name, value in values.items())


_STRIDES = ("step", "sequence")
_OUTPUT, _D_OUTPUT, _GATES = (f"{name} {name}_step {name}_sequence" for name in ("output", "d_output", "gates"))
_SIZES = ("steps", "batch", "is_reverse")  # of 32 bits
# Fields of the kernels' ForwardParams and BackwardParams.
FORWARD_PARAMS = (
    *f"{_GATES} bias_ih bias_hh h0 c0 {_OUTPUT} h_n c_n lengths saved_gates saved_cells row_step row_sequence status".split(),
    *_SIZES,
)
BACKWARD_PARAMS = (
    *f"saved_gates saved_cells row_step row_sequence {_OUTPUT} h0 c0 {_D_OUTPUT} d_h_n d_c_n d_gates d_recurrent".split(),
    *("d_h0", "d_c0", "lengths", "status", *_SIZES),
)
_OF_INPUTS = ("x", "x_step", "x_sequence", "weight_ih")
# Addresses in a call's order. Those of x and weight_ih precede them where the kernel computes their product; those of the
# memory by which blocks of a grid exchange, and from which weights are streamed, come last.
_ADDRESSES = {
    False: "gates weight_hh bias_ih bias_hh h0 c0 output h_n c_n lengths saved_gates saved_cells",
    True: "saved_gates saved_cells output weight_hh h0 c0 d_output d_h_n d_c_n d_gates d_recurrent d_h0 d_c0 lengths",
}


def source_of(spec: KernelSpec, form: Form) -> Path:
    if isinstance(form, BlockConfig):
        return _BLOCK_SOURCES[spec.is_backward]
    if not form.is_grid:
        return _SOURCES[spec.is_backward]
    if isinstance(form, WgmmaConfig):
        return _WGMMA_SOURCES[spec.is_backward]
    return _NTILED_SOURCE if isinstance(form, NTiledGridConfig) else _GRID_SOURCES[spec.is_backward]


def params(names: Iterable[str]) -> dict[str, type[int] | type[np.int64]]:
    """The fields of a kernel's Params: sizes have 32 bits, all others 64."""
    return {name: int if name in _SIZES else np.int64 for name in names}


def _allocated(form: Form) -> tuple[str, ...]:
    """The fields of the memory that a launch allocates beside its arrays."""
    return ("mailboxes", "weight_stream") if form.is_grid else ("weight_stream",)


def _fields(spec: KernelSpec, form: Form) -> list[str]:
    """The fields of the kernel's Params, in their order."""
    if spec.is_backward:
        return [*BACKWARD_PARAMS, "weight_hh", *_allocated(form)]
    return [*FORWARD_PARAMS, *_OF_INPUTS, "weight_hh", *_allocated(form)]


def make_kernel(spec: KernelSpec, form: Form) -> Kernel:
    """The kernel of a form, which takes its arguments by name."""
    arguments = params(_fields(spec, form))
    name, macros_of = "persistent_backward" if spec.is_backward else "persistent_forward", macros(spec, form)
    source, shared_bytes = source_of(spec, form), shared_bytes_of(spec, form)
    grid, cluster = form.is_grid, form.cluster_blocks
    return Kernel(source, name, macros_of, arguments, spec.device, shared_bytes, grid, cluster, is_lazy=True)


get_kernel = lru_cache(maxsize=4096)(make_kernel)


@lru_cache(maxsize=4096)
def compile_layer(shape: Shape, spec: KernelSpec) -> tuple[Form, Kernel]:
    """A layer's form and its kernel. Raises ValueError for what does not run, or does not fit."""
    check(shape, spec)
    problem = spec.problem(shape.cell, shape.hidden, shape.batch)
    form = select_config(problem, Device.of(spec.device), computes_inputs=spec.inputs > 0)
    if isinstance(form, str):
        raise ValueError(form)
    return form, get_kernel(spec, form)


def unsupported_reason(shape: Shape, spec: KernelSpec) -> str | None:
    """Why no form runs a layer, or its backward pass where that follows, or None. Nothing is compiled."""
    try:
        check(shape, spec)
    except ValueError as error:
        return str(error)
    for spec_of_pass in (spec, spec.backward)[: 1 + spec.saves_for_backward]:
        form = select_config(spec_of_pass.problem(shape.cell, shape.hidden, shape.batch), Device.of(spec.device))
        if isinstance(form, str):
            return form
    return None


def check(shape: Shape, spec: KernelSpec) -> None:
    """Raises ValueError for what no form runs."""
    if min(shape.steps, shape.batch, shape.hidden) < 1:
        raise ValueError(f"expected T, B and H of at least 1, got {shape.steps}, {shape.batch} and {shape.hidden}")
    if max(shape.steps, shape.gate_width * shape.batch) >= 2**30:
        raise ValueError(f"expected T and G * B * H below 2^30, got {shape.steps} and {shape.gate_width * shape.batch}")
    if spec.dtype not in DTYPES:
        raise ValueError(f"expected one of {', '.join(map(str, DTYPES))}, got {spec.dtype}")
    if reason := skip_reason(spec.device):
        raise ValueError(f"on {spec.device}: {reason}")
    status_of(spec.device)  # which is not to be made while a graph is captured


class TimeoutStatus:
    """A word of host memory, not 0 once a kernel's wait on that device has timed out. Its address does not change."""

    def __init__(self, device: torch.device):
        # Under torch.export's or a user's FakeTensorMode it would have no address.
        with torch.inference_mode(False), torch.utils._python_dispatch._disable_current_modes():
            self._memory = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=device.type == "cuda")
        self._device, self.address = device, self._memory.data_ptr()
        self._word = ctypes.c_int32.from_address(self.address)

    def reset(self) -> bool:
        """Resets the word. Returns whether a launch has timed out since the last call."""
        has_timed_out, self._word.value = self._word.value != 0, 0
        return has_timed_out

    def check(self) -> None:
        """Raises RuntimeError, once, after a launch that timed out, whose results are NaN. Called before each launch."""
        if self._word.value and self.reset():
            raise RuntimeError(
                f"an earlier launch of a persistent kernel on {self._device} is wrong: a block waited {WATCHDOG_NS / 1e9:g} s "
                "for the others and gave up"
            )


_statuses: dict[torch.device, TimeoutStatus] = {}
_making_one = threading.Lock()


def status_of(device: torch.device) -> TimeoutStatus:
    status = _statuses.get(device)
    if status is None:
        with _making_one:
            status = _statuses.setdefault(device, TimeoutStatus(device))
    return status


Strides = tuple[int, int]  # of steps and of sequences, in elements


class Launch:
    """Launches one kernel on rows of given strides; a call passes the addresses of its arrays.

    width: bytes to which `aligned` aligns the weights and x, which has no gaps. zeroed_bytes: of memory that a launch
    needs zeroed.
    """

    def __init__(self, shape: Shape, spec: KernelSpec, is_reverse: bool, output: Strides, other: Strides, inputs: int = 0):
        """other: strides of the gates, backward of the output's gradient. inputs: replaces those of `spec`.

        Raises as `compile_layer` does, for the backward pass that follows too.
        """
        spec = spec._replace(inputs=inputs)
        form, kernel = compile_layer(shape, spec)
        if spec.saves_for_backward:
            compile_layer(shape, spec.backward)
        self._device, self._status, self.width = spec.device, status_of(spec.device), width_of(spec, form)
        self.zeroed_bytes, self._stream_bytes = form.mailbox_bytes if form.is_grid else 0, form.stream_bytes
        self.may_run_concurrently = spec.device.type == "cuda" and fits_both_directions(form, Device.of(spec.device))
        of_rows = (f"{name}_{what}" for name in ("output", "d_output" if spec.is_backward else "gates") for what in _STRIDES)
        integers = dict(zip(of_rows, output + other, strict=True)) | shape.row_strides
        addresses = [*_ADDRESSES[spec.is_backward].split(), *_allocated(form)]
        if inputs:
            integers |= {f"x_{what}": inputs * shape.row_strides[f"row_{what}"] for what in _STRIDES}
            addresses = ["x", "weight_ih", *addresses]
        elif not spec.is_backward:
            integers |= dict.fromkeys(_OF_INPUTS, 0)
        integers |= {"status": self._status.address, "steps": shape.steps, "batch": shape.batch, "is_reverse": int(is_reverse)}
        launch = form.launch._replace(shared_bytes=shared_bytes_of(spec, form))
        self._run = kernel.at(launch, addresses, **integers)

    def __call__(self, addresses: tuple[int, ...]) -> None:
        """Launches the kernel. addresses: of its arrays and of zeroed bytes, if it needs some, in its order, 0 for none."""
        self._status.check()
        weight_stream = empty((self._stream_bytes,), torch.uint8, self._device) if self._stream_bytes else None
        self._run((*addresses, address(weight_stream)))


get_layer_kernel = lru_cache(maxsize=4096)(Launch)


def clear_cache() -> None:
    """Clears the caches of kernels and launches, so that other forms or builds are used from now on."""
    get_layer_kernel.cache_clear()
    compile_layer.cache_clear()
    get_kernel.cache_clear()
