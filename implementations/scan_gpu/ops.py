"""scan_gpu's kernels as torch's ops `pytest_ecornn::scan_forward` and `scan_backward`, for one layer and direction."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from math import gcd, prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common.autograd_ops import register_autograd, register_vmap
from pytest_ecornn.implementations._cuda.kernel import BoundLaunch, Kernel, TensorArg, storage_macro
from pytest_ecornn.implementations._cuda.layout_memo import LayoutMemo
from pytest_ecornn.implementations._cuda.rows import contiguous_last_dim, shape_of, sizes_of, strided_arguments, strides
from pytest_ecornn.implementations.scan_gpu.autograd import ScanFunction
from pytest_ecornn.implementations.scan_gpu.config import Device, Form, ScanRequirements, select_config, word_of

CELLS = {"mingru": (2, 0, 0), "mingru_positive": (2, 0, 1), "minlstm": (3, 1, 0), "minlstm_positive": (3, 1, 1)}
_SOURCE = Path(__file__).parent / "kernels" / "scan.cu"
_COPIED_BYTES = 16  # at once, where rows are aligned to it


class Shape(NamedTuple):
    """Shape of a scan over pre-activations [T, B, G*H], or [B, T, G*H] with `batch_first`."""

    cell: str
    steps: int
    batch: int
    hidden: int
    batch_first: bool
    reverse: bool

    @classmethod
    def of(cls, x: Tensor, cell: str, batch_first: bool, reverse: bool) -> Shape:
        return cls(cell, *sizes_of(x, batch_first), x.shape[2] // CELLS[cell][0], batch_first, reverse)

    @property
    def state(self) -> tuple[int, int]:
        return self.batch, self.hidden

    def results(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Room for the output and the final state, beside x."""
        return x.new_empty(shape_of(self, self.hidden)), x.new_empty(self.state)


class ScanSpec(NamedTuple):
    """Properties that a kernel is compiled for, beside the shape. alignment: of all rows in bytes, at most 16."""

    dtype: torch.dtype
    device: torch.device
    alignment: int
    is_biased: bool
    is_masked: bool
    is_backward: bool

    @classmethod
    def of(
        cls, shape: Shape, rows: list[Tensor], bias: Tensor | None, masks: list[Tensor | None], is_backward: bool
    ) -> ScanSpec:
        dtype = rows[0].dtype
        elements = (shape.hidden, *(stride for one in rows for stride in one.stride()[:-1]))
        alignment = gcd(_COPIED_BYTES, *(dtype.itemsize * count for count in elements), *(one.data_ptr() for one in rows))
        is_masked = any(mask is not None for mask in masks)
        return cls(dtype, rows[0].device, alignment, bias is not None, is_masked, is_backward)


@lru_cache(maxsize=4096)
def make_plan(shape: Shape, kind: ScanSpec) -> tuple[Form, Kernel]:
    """How a scan is cut, and its kernel. Raises ValueError where there is nothing to scan."""
    if min(shape.steps, shape.batch, shape.hidden) < 1:
        raise ValueError(f"expected T, B and H of at least 1, got {shape.steps}, {shape.batch} and {shape.hidden}")
    form = choose_form(shape, kind, Device.of(kind.device))
    return form, make_kernel(shape, kind, form)


def choose_form(shape: Shape, kind: ScanSpec, device: Device) -> Form:
    gates, _, positive = CELLS[shape.cell]
    is_plain = not (kind.is_masked or kind.is_biased or (kind.is_backward and gates == 3 and positive))
    is_paired = kind.dtype.itemsize == 2 and kind.alignment >= 4
    need = ScanRequirements(gates, kind.dtype, is_paired, kind.is_backward, is_plain)
    return select_config(shape.steps, shape.batch, shape.hidden, need, device)


def macros(shape: Shape, kind: ScanSpec, form: Form) -> tuple[tuple[str, str], ...]:
    """Returns the macros that the source is compiled with."""
    _, cell, positive = CELLS[shape.cell]
    found = {"CELL": cell, "POSITIVE": positive, "MASKED": int(kind.is_masked), "BIASED": int(kind.is_biased)}
    found["ALIGNED"] = int(kind.alignment == _COPIED_BYTES)
    found |= {"BACKWARD": int(kind.is_backward), storage_macro(kind.dtype): 1}
    return tuple((name, str(value)) for name, value in (found | form.macros).items())


def make_kernel(shape: Shape, kind: ScanSpec, form: Form) -> Kernel:
    """The kernel of a form, its arguments by name."""
    dtype = kind.dtype
    gates = CELLS[shape.cell][0]
    of_state, rows = TensorArg(dtype, prod(shape.state), is_optional=True), partial(strided_arguments, shape)
    of_bias = TensorArg(dtype, gates * shape.hidden, is_optional=not kind.is_biased)
    arguments: dict[str, Any] = {**rows("x", dtype, gates * shape.hidden), "bias": of_bias, "h0": of_state}
    arguments |= rows("output", dtype, shape.hidden)
    if kind.is_backward:
        arguments |= {**rows("d_output", dtype, shape.hidden), "d_h_n": of_state}
        arguments |= {**rows("d_x", dtype, gates * shape.hidden), "d_h0": of_state}
    else:
        arguments |= {"h_n": of_state}
    arguments |= {"lengths": TensorArg(torch.int64, shape.batch, is_optional=True), **rows("resets", torch.uint8, 1, True)}
    arguments["tile_status"] = TensorArg(word_of(dtype), form.words, not form.splits_time)
    arguments |= dict.fromkeys(("steps", "batch", "hidden", "is_reverse", "tiles", "group_bits"), int)
    name = "scan_backward" if kind.is_backward else "scan_forward"
    return Kernel(_SOURCE, name, macros(shape, kind, form), arguments, kind.device, form.launch.shared_bytes, form.splits_time)


Arrays = Mapping[str, Tensor | None]
_ROWS = ("x", "output", "d_output", "d_x")


def arguments(form: Form, shape: Shape, arrays: Arrays) -> tuple[dict[str, Tensor | None], dict[str, int]]:
    """All that the kernel takes, by name: the arrays, to which maps come, and integers. `resets` as [T, B] or [B, T]."""
    integers = {"steps": shape.steps, "batch": shape.batch, "hidden": shape.hidden, "is_reverse": int(shape.reverse)}
    integers |= {"tiles": form.tiles, "group_bits": form.group_bits}
    for name in (*(name for name in _ROWS if name in arrays), "resets"):
        integers |= strides(shape, name, arrays[name])
    x, resets = arrays["x"], arrays["resets"]
    assert x is not None
    return {**arrays, "resets": None if resets is None else resets[..., None], "tile_status": form.tile_status(x)}, integers


def _prepared(how: tuple[Shape, bool], arrays: Arrays) -> tuple[Form, BoundLaunch]:
    shape, is_backward = how
    rows = [one for name in _ROWS if (one := arrays.get(name)) is not None]
    kind = ScanSpec.of(shape, rows, arrays["bias"], [arrays["lengths"], arrays["resets"]], is_backward)
    form, kernel = make_plan(shape, kind)
    taken, integers = arguments(form, shape, arrays)
    return form, kernel.bind(form.launch, taken, **integers)


_launches = LayoutMemo(_prepared)


def _launch(shape: Shape, is_backward: bool, x: Tensor, **others: Tensor | None) -> None:
    """The pass over its arrays, all but the maps. Without sequences there is nothing to do."""
    if not shape.batch:
        return
    (form, launch), pointers = _launches.get_or_compute((shape, is_backward), {"x": x, **others})
    tile_status = form.tile_status(x)
    launch([*pointers, 0 if tile_status is None else tile_status.zero_().data_ptr()])


def _forward(x: Tensor, bias: Tensor | None, h0: Tensor | None, *how: Any) -> tuple[Tensor, Tensor]:
    lengths, resets, *named, _ = how
    x, shape = contiguous_last_dim(x), Shape.of(x, *named)
    output, final = shape.results(x)
    h0 = None if h0 is None else h0.contiguous()
    _launch(shape, False, x, bias=bias, h0=h0, output=output, h_n=final, lengths=lengths, resets=resets)
    return output, final


def _backward(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    x = contiguous_last_dim(x)
    d_x = x.new_empty(x.shape)
    return d_x, _backward_out(d_x, x, *rest)


def _backward_inplace(x: Tensor, *rest: Any) -> Tensor:
    return _backward_out(x, x, *rest)


def _backward_out(
    d_x: Tensor, x: Tensor, bias: Tensor | None, h0: Tensor | None, output: Tensor, d_output: Tensor, d_final: Tensor | None,
    lengths: Tensor | None, resets: Tensor | None, *named: Any,
) -> Tensor:  # fmt: skip
    output, d_output, shape = contiguous_last_dim(output), contiguous_last_dim(d_output), Shape.of(x, *named)
    d_h0 = x.new_empty(shape.state)
    h0, d_final = (None if one is None else one.contiguous() for one in (h0, d_final))
    _launch(
        shape, True, x, bias=bias, h0=h0, output=output, d_output=d_output, d_h_n=d_final, d_x=d_x, d_h0=d_h0,
        lengths=lengths, resets=resets,
    )  # fmt: skip
    return d_h0


_OPTIONS_SCHEMA = "Tensor? lengths, Tensor? resets, str cell, bool batch_first, bool reverse"
_GRADIENTS = "Tensor? bias, Tensor? first, Tensor output, Tensor d_output, Tensor? d_final"
_library = torch.library.Library("pytest_ecornn", "FRAGMENT")
_library.define(
    f"scan_forward(Tensor x, Tensor? bias, Tensor? first, {_OPTIONS_SCHEMA}, bool overwrites_x) -> (Tensor, Tensor)"
)
_library.define(f"scan_backward(Tensor x, {_GRADIENTS}, {_OPTIONS_SCHEMA}) -> (Tensor, Tensor)")
_library.define(f"scan_backward_over(Tensor(a!) x, {_GRADIENTS}, {_OPTIONS_SCHEMA}) -> Tensor")  # x becomes its own gradient


def _fake_forward(x: Tensor, bias: Tensor | None, first: Tensor | None, *how: Any) -> tuple[Tensor, Tensor]:
    return Shape.of(x, *how[2:5]).results(x)


def _fake_backward(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), _fake_backward_over(x, *rest)


def _fake_backward_over(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(Shape.of(x, *rest[-3:]).state)


class _Differentiable(ScanFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, first: Tensor | None, *how: Any) -> tuple[Tensor, Tensor]:
        output, final = _below_autograd(x, bias, first, *how)
        ScanFunction.keep(ctx, x, bias, first, output, *how[:2], how=how[2:5], overwrites_x=how[5])
        return output, final


for _name, _run, _fake in (
    ("scan_forward", _forward, _fake_forward), ("scan_backward", _backward, _fake_backward),
    ("scan_backward_over", _backward_inplace, _fake_backward_over),
):  # fmt: skip
    _library.impl(_name, _run, "CUDA")
    torch.library.register_fake(f"pytest_ecornn::{_name}", _fake, lib=_library)
for _name in ("scan_forward", "scan_backward"):
    register_vmap(_library, _name)
_below_autograd = register_autograd(_library, "scan_forward", _Differentiable.apply)


def scan(
    x: Tensor, bias: Tensor | None, first: Tensor | None, lengths: Tensor | None, resets: Tensor | None, cell: str,
    batch_first: bool, reverse: bool, overwrites_x: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output [.., H] laid out as x and final state [B, H], differentiable.

    x: the gates' pre-activations, [T, B, G*H], or [B, T, G*H] with `batch_first`, on a CUDA device. bias: [G*H], added to x.
    first: [B, H], None for zeros. lengths: int64 [B] on the same device. resets: uint8 [T, B] or [B, T], as x, 1 where a step
    starts from a state of zeros. reverse: last step first. overwrites_x: x is nobody else's, so that a backward pass which ends
    the graph may write x's gradient over it; captured in a CUDA graph, it is replayed once after each forward pass. Who has
    saved x nevertheless is told by torch, but not under saved-tensor hooks.
    """
    found: tuple[Tensor, Tensor] = torch.ops.pytest_ecornn.scan_forward.default(
        x, bias, first, lengths, resets, cell, batch_first, reverse, overwrites_x
    )
    return found


def describe(case: Case, device: torch.device) -> str:
    """Compiles what the case needs; says which form runs."""
    return "; backward: ".join(describe_pass(case, device, backward) for backward in (False, True)[: 1 + case.training])


def describe_pass(case: Case, device: torch.device, backward: bool) -> str:
    """Compiles what one pass of the case needs; says which form runs."""
    shape = Shape(case.cell, case.steps, case.batch, case.hidden_size, case.batch_first, False)
    dtype: torch.dtype = getattr(torch, case.dtype)
    found = ""
    for given in {case.projected, case.projected and case.layers == 1}:  # x itself, and products
        elements = case.hidden_size if not given or case.layout == "contiguous" else 1
        alignment = gcd(_COPIED_BYTES, elements * dtype.itemsize)
        kind = ScanSpec(dtype, device, alignment, case.bias and not given, case.ragged or case.resets, backward)
        found = str(make_plan(shape, kind)[0])
    return found
