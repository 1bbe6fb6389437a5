"""scan_gpu_log's kernel as torch's op `pytest_ecornn::scan_log_forward`, for one layer and direction.

Gradients have signs, so they are scanned in linear space: by scan_gpu's `scan_backward`, on the output as it was stored.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common.autograd_ops import register_autograd, register_vmap
from pytest_ecornn.implementations._cuda.kernel import BoundLaunch, Kernel, TensorArg, storage_macro
from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations._cuda.layout_memo import LayoutMemo
from pytest_ecornn.implementations._cuda.rows import contiguous_last_dim, strided_arguments, strides
from pytest_ecornn.implementations.scan_gpu.autograd import ScanFunction
from pytest_ecornn.implementations.scan_gpu.ops import CELLS, Arrays, Shape, describe_pass

_SOURCE = Path(__file__).parent / "kernels" / "log_scan.cu"


class BlellochConfig(NamedTuple):
    """Work of a block at once: `across` channels over `steps` steps, a power of 2, by `threads` threads."""

    threads_per_row: int
    steps: int
    threads: int = 256

    def launch(self, shape: Shape) -> Launch:
        return Launch(shape.batch * ceil(shape.hidden / self.threads_per_row), self.threads)

    def __str__(self) -> str:
        return f"trees of {self.steps} steps, {self.threads_per_row} channels"


def select_config(shape: Shape, dtype: torch.dtype, processors: int) -> BlellochConfig:
    """Narrow and long trees where 32 channels a block would leave multiprocessors idle; their maps fill 32 KiB at most."""
    num_maps = 1024 if dtype == torch.float64 else 2048
    width = 32 if shape.batch * ceil(shape.hidden / 32) >= processors else 8
    return BlellochConfig(width, num_maps // width)


def macros(cell: str, dtype: torch.dtype, tree: BlellochConfig, is_compensated: bool) -> tuple[tuple[str, str], ...]:
    """Returns the macros that the source is compiled with."""
    found = {"CELL": CELLS[cell][1], "POSITIVE": 1, "COMPENSATED": int(is_compensated)}
    found |= {storage_macro(dtype): 1}
    found |= {"CHANNELS_PER_BLOCK": tree.threads_per_row, "TILE": tree.steps, "THREADS": tree.threads}
    return tuple((name, str(value)) for name, value in found.items())


def make_kernel(shape: Shape, dtype: torch.dtype, device: torch.device, tree: BlellochConfig, is_compensated: bool) -> Kernel:
    """The kernel of a tree, its arguments by name."""
    gates, of_state = CELLS[shape.cell][0] * shape.hidden, TensorArg(dtype, prod(shape.state), is_optional=True)
    arguments = {
        **strided_arguments(shape, "x", dtype, gates),
        "bias": TensorArg(dtype, gates, is_optional=True),
        "h0": of_state,
    }
    arguments |= {**strided_arguments(shape, "output", dtype, shape.hidden), "h_n": of_state}
    arguments |= {"lengths": TensorArg(torch.int64, shape.batch, is_optional=True)}
    arguments |= dict.fromkeys(("steps", "hidden", "is_reverse"), int)
    return Kernel(_SOURCE, "scan_log_forward", macros(shape.cell, dtype, tree, is_compensated), arguments, device)


@lru_cache(maxsize=4096)
def make_plan(shape: Shape, dtype: torch.dtype, device: torch.device, is_compensated: bool) -> tuple[BlellochConfig, Kernel]:
    """How a scan is cut, and its kernel."""
    tree = select_config(shape, dtype, torch.cuda.get_device_properties(device).multi_processor_count)
    return tree, make_kernel(shape, dtype, device, tree, is_compensated)


def integers(shape: Shape, arrays: Arrays) -> dict[str, int]:
    """All that the kernel takes beside arrays, by name."""
    both = {**strides(shape, "x", arrays["x"]), **strides(shape, "output", arrays["output"])}
    return {**both, "steps": shape.steps, "hidden": shape.hidden, "is_reverse": int(shape.reverse)}


def _prepared(how: tuple[Shape, bool], arrays: Arrays) -> BoundLaunch:
    shape, is_compensated = how
    x = arrays["x"]
    assert x is not None
    tree, kernel = make_plan(shape, x.dtype, x.device, is_compensated)
    return kernel.bind(tree.launch(shape), arrays, **integers(shape, arrays))


_launches = LayoutMemo(_prepared)


def _forward(x: Tensor, bias: Tensor | None, h0: Tensor | None, lengths: Tensor | None, *how: Any) -> tuple[Tensor, Tensor]:
    *named, is_compensated, _ = how
    x, shape = contiguous_last_dim(x), Shape.of(x, *named)
    output, final = shape.results(x)
    if not shape.batch:
        return output, final
    h0 = None if h0 is None else h0.contiguous()
    arrays = {"x": x, "bias": bias, "h0": h0, "output": output, "h_n": final, "lengths": lengths}
    launch, pointers = _launches.get_or_compute((shape, is_compensated), arrays)
    launch(pointers)
    return output, final


def _fake(x: Tensor, bias: Tensor | None, first: Tensor | None, lengths: Tensor | None, *how: Any) -> tuple[Tensor, Tensor]:
    return Shape.of(x, *how[:3]).results(x)


class _Differentiable(ScanFunction):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, first: Tensor | None, lengths: Tensor | None, *how: Any
    ) -> tuple[Tensor, Tensor]:
        output, final = _below_autograd(x, bias, first, lengths, *how)
        ScanFunction.keep(ctx, x, bias, first, output, lengths, None, how=how[:3], overwrites_x=how[-1])
        return output, final


_library = torch.library.Library("pytest_ecornn", "FRAGMENT")
_library.define(
    "scan_log_forward(Tensor x, Tensor? bias, Tensor? first, Tensor? lengths, str cell, bool batch_first, bool reverse, "
    "bool is_compensated, bool overwrites_x) -> (Tensor, Tensor)"
)
_library.impl("scan_log_forward", _forward, "CUDA")
_below_autograd = register_autograd(_library, "scan_log_forward", _Differentiable.apply)
torch.library.register_fake("pytest_ecornn::scan_log_forward", _fake, lib=_library)
register_vmap(_library, "scan_log_forward")


def log_scan(
    x: Tensor, first: Tensor | None, lengths: Tensor | None, cell: str, batch_first: bool, reverse: bool, *,
    bias: Tensor | None = None, is_compensated: bool | None = None, overwrites_x: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output [.., H] laid out as x and final state [B, H], differentiable.

    x: the gates' pre-activations, [T, B, G*H], or [B, T, G*H] with `batch_first`, on a CUDA device. first: [B, H], None for
    zeros. lengths: int64 [B] on the same device. reverse: last step first. bias: [G*H], added to x. is_compensated: logarithms
    in two numbers, without which float32 and float64 are not as accurate as a loop; None for where it matters. overwrites_x: as
    `_scan_gpu_op.scan` has it.
    """
    if cell not in CELLS or not CELLS[cell][2]:
        positive = ", ".join(name for name, (_, _, is_positive) in CELLS.items() if is_positive)
        raise ValueError(f"log space needs a positive candidate: expected one of {positive}, got {cell}")
    is_compensated = x.dtype.itemsize > 2 if is_compensated is None else is_compensated
    how = (cell, batch_first, reverse, is_compensated, overwrites_x)
    found: tuple[Tensor, Tensor] = torch.ops.pytest_ecornn.scan_log_forward.default(x, bias, first, lengths, *how)
    return found


def describe(case: Case, device: torch.device) -> str:
    """Compiles what the case needs; says which form runs."""
    dtype = getattr(torch, case.dtype)
    shape = Shape(case.cell, case.steps, case.batch, case.hidden_size, case.batch_first, False)
    is_compensated = dtype.itemsize > 2
    tree, _ = make_plan(shape, dtype, device, is_compensated)
    forward = f"{tree}; logarithms in {'two numbers' if is_compensated else 'float32'}"
    if not case.training:
        return forward
    return f"{forward}; backward in linear space: {describe_pass(case, device, True)}"
