"""persistent_gpu's kernel as torch's op `pytest_ecornn::persistent_forward`, for one layer and direction."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.implementations._persistent_form import GATES, Device, Form, choose
from pytest_ecornn.implementations.cuda.kernel import Array, Kernel, Prepared
from pytest_ecornn.implementations.cuda.layout_memo import LayoutMemo
from pytest_ecornn.implementations.cuda.rows import adjacent, shape_of, strided, strides

CELLS = {"rnn_tanh": 0, "rnn_relu": 1, "lstm": 2, "gru": 3}
WATCHDOG_NS = 4_000_000_000
_SOURCE = Path(__file__).with_name("persistent_gpu.cu")
_PAIR_BYTES = 4  # weights are read two at a time


class Shape(NamedTuple):
    """Of one layer in one direction, over the product of its inputs [T, B, G*H], or [B, T, G*H] with `batch_first`."""

    cell: str
    steps: int
    batch: int
    hidden: int
    batch_first: bool

    @classmethod
    def of(cls, gates: Tensor, cell: str, batch_first: bool) -> Shape:
        steps, batch = (gates.shape[1], gates.shape[0]) if batch_first else (gates.shape[0], gates.shape[1])
        return cls(cell, steps, batch, gates.shape[2] // GATES[cell], batch_first)

    def results(self, beside: Tensor) -> list[Tensor]:
        """Room for the output and the final states."""
        states = 2 if self.cell == "lstm" else 1
        shapes = [shape_of(self, self.hidden), *[(self.batch, self.hidden)] * states]
        return [beside.new_empty(shape) for shape in shapes]


def macros(cell: str, hidden: int, dtype: torch.dtype, form: Form) -> tuple[tuple[str, str], ...]:
    """What the source is compiled with."""
    found = {"CELL": CELLS[cell], "HIDDEN": hidden, f"STORAGE_{str(dtype).removeprefix('torch.').upper()}": 1}
    found |= {**form.macros, "WATCHDOG_NS": WATCHDOG_NS}
    return tuple((name, str(value)) for name, value in found.items())


def make_kernel(shape: Shape, dtype: torch.dtype, device: torch.device, form: Form) -> Kernel:
    """The kernel of a form, its arguments by name."""
    wide, state = GATES[shape.cell] * shape.hidden, Array(dtype, shape.batch * shape.hidden, is_optional=True)
    bias = Array(dtype, wide, is_optional=True)
    arguments: dict[str, Any] = {**strided(shape, "gates", dtype, wide), "weight": Array(dtype, wide * shape.hidden)}
    arguments |= {"bias_ih": bias, "bias_hh": bias, "first_h": state, "first_c": state}
    arguments |= {**strided(shape, "output", dtype, shape.hidden), "final_h": state, "final_c": state}
    arguments |= {"lengths": Array(torch.int64, shape.batch, is_optional=True), "status": np.int64}
    arguments |= dict.fromkeys(("steps", "batch", "is_reverse"), int)
    of = macros(shape.cell, shape.hidden, dtype, form)
    return Kernel(_SOURCE, "persistent_forward", of, arguments, device, form.shared_bytes, cluster=form.blocks)


@lru_cache(maxsize=4096)
def plan(shape: Shape, dtype: torch.dtype, device: torch.device) -> tuple[Form, Kernel]:
    """How a layer is spread over the chip, and its kernel. Raises ValueError where nothing runs, or it does not fit."""
    if min(shape.steps, shape.batch, shape.hidden) < 1:
        raise ValueError(f"expected T, B and H of at least 1, got {shape.steps}, {shape.batch} and {shape.hidden}")
    form = choose(shape.cell, shape.hidden, shape.batch, Device.of(device))
    if isinstance(form, str):
        raise ValueError(form)
    return form, make_kernel(shape, dtype, device, form)


@cache
def status_of(device: torch.device) -> Tensor:
    """[1], int32, in the host's memory: not 0 once a kernel on that device has given up a wait."""
    return torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")


def check_status(device: torch.device) -> None:
    """Raises RuntimeError, once, after a launch that gave up."""
    status = status_of(device)
    if status.item():
        status.zero_()
        raise RuntimeError(
            f"an earlier launch of persistent_gpu on {device} is wrong: a block waited {WATCHDOG_NS / 1e9:g} s for the others' "
            "states and gave up"
        )


def _prepared(how: tuple[Shape, bool], arrays: Mapping[str, Tensor | None]) -> Prepared:
    shape, is_reverse = how
    gates = arrays["gates"]
    assert gates is not None
    form, kernel = plan(shape, gates.dtype, gates.device)
    integers = {"status": status_of(gates.device).data_ptr(), "steps": shape.steps, "batch": shape.batch}
    integers |= {**strides(shape, "gates", gates), **strides(shape, "output", arrays["output"])}
    return kernel.prepared(form.launch, arrays, **integers, is_reverse=int(is_reverse))


_launches = LayoutMemo(_prepared)


def _dense(one: Tensor | None) -> Tensor | None:
    return None if one is None else one.contiguous()


def _forward(
    gates: Tensor, weight: Tensor, bias_ih: Tensor | None, bias_hh: Tensor | None, first_h: Tensor | None,
    first_c: Tensor | None, lengths: Tensor | None, *how: Any,
) -> list[Tensor]:  # fmt: skip
    check_status(gates.device)
    *named, is_reverse = how
    if weight.data_ptr() % _PAIR_BYTES:
        weight = weight.clone()
    gates, weight, shape = adjacent(gates), weight.contiguous(), Shape.of(gates, *named)
    results = shape.results(gates)
    output, final_h, final_c = (*results, None)[:3]
    arrays = {
        "gates": gates, "weight": weight, "bias_ih": _dense(bias_ih), "bias_hh": _dense(bias_hh), "first_h": _dense(first_h),
        "first_c": _dense(first_c), "output": output, "final_h": final_h, "final_c": final_c, "lengths": lengths,
    }  # fmt: skip
    launch, pointers = _launches.find((shape, is_reverse), arrays)
    launch(pointers)
    return results


def _fake(gates: Tensor, weight: Tensor, *rest: Any) -> list[Tensor]:
    return Shape.of(gates, *rest[-3:-1]).results(gates)


_library = torch.library.Library("pytest_ecornn", "FRAGMENT")
_library.define(
    "persistent_forward(Tensor gates, Tensor weight, Tensor? bias_ih, Tensor? bias_hh, Tensor? first_h, Tensor? first_c, "
    "Tensor? lengths, str cell, bool batch_first, bool reverse) -> Tensor[]"
)
_library.impl("persistent_forward", _forward, "CUDA")
torch.library.register_fake("pytest_ecornn::persistent_forward", _fake, lib=_library)


def run(
    gates: Tensor, weight: Tensor, bias_ih: Tensor | None, bias_hh: Tensor | None, first: tuple[Tensor, ...],
    lengths: Tensor | None, cell: str, batch_first: bool, reverse: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Output [.., H] laid out as gates and final states [B, H]; without gradients.

    gates: W_ih x without biases, [T, B, G*H], or [B, T, G*H] with `batch_first`, in 16 bits, on a CUDA device. weight: W_hh,
    [G*H, H]. bias_ih, bias_hh: [G*H]. first: the initial states [B, H], () for zeros. lengths: int64 [B] on the same device.
    reverse: last step first. Raises RuntimeError where an earlier launch gave up.
    """
    first_h, first_c = (*first, None, None)[:2]
    given = (gates, weight, bias_ih, bias_hh, first_h, first_c, lengths, cell, batch_first, reverse)
    return tuple(torch.ops.pytest_ecornn.persistent_forward.default(*given))
