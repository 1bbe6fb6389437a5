"""persistent_gpu's kernels as torch's ops `pytest_ecornn::persistent_forward` and others, for one layer and direction."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.implementations._nn_cells import NN_CELLS
from pytest_ecornn.implementations._persistent_form import GATES, Arithmetic, Device, Form, Problem, choose, training_refusal
from pytest_ecornn.implementations.cuda.compile import refusal
from pytest_ecornn.implementations.cuda.kernel import Array, Kernel, Prepared
from pytest_ecornn.implementations.cuda.layout_memo import LayoutMemo
from pytest_ecornn.implementations.cuda.rows import adjacent, shape_of, sizes_of, strided, strides

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WATCHDOG_NS = 4_000_000_000
_SOURCES = {False: Path(__file__).with_name("persistent_gpu.cu"), True: Path(__file__).with_name("persistent_gpu_backward.cu")}
_GRID_SOURCE = Path(__file__).with_name("persistent_grid.cu")
_MOST_WIDE = 16  # bytes that are read at once


class Shape(NamedTuple):
    """Of one layer in one direction, over the product of its inputs [T, B, G*H], or [B, T, G*H] with `batch_first`."""

    cell: str
    steps: int
    batch: int
    hidden: int
    batch_first: bool

    @classmethod
    def of(cls, gates: Tensor, cell: str, batch_first: bool) -> Shape:
        """Raises ValueError for an unknown cell, or gates that are not of three dimensions."""
        if cell not in GATES or gates.dim() != 3:
            raise ValueError(f"expected one of {', '.join(GATES)} and three dimensions, got {cell} and {tuple(gates.shape)}")
        return cls(cell, *sizes_of(gates, batch_first), gates.shape[2] // GATES[cell], batch_first)

    @classmethod
    def of_output(cls, output: Tensor, cell: str, batch_first: bool) -> Shape:
        return cls(cell, *sizes_of(output, batch_first), output.shape[2], batch_first)

    @property
    def wide(self) -> int:
        """Pre-activations of a step and sequence."""
        return GATES[self.cell] * self.hidden

    def results(self, beside: Tensor) -> list[Tensor]:
        """Room for the output and the final states."""
        states = 2 if self.cell == "lstm" else 1
        shapes = [shape_of(self, self.hidden), *[(self.batch, self.hidden)] * states]
        return [beside.new_empty(shape) for shape in shapes]

    def kept(self, beside: Tensor) -> list[Tensor]:
        """Room for what the backward pass is to have: of LSTM and GRU four values a unit, of LSTM c as well."""
        four = 4 * self.hidden if GATES[self.cell] > 1 else 0
        cells = self.hidden if self.cell == "lstm" else 0
        return [beside.new_empty(shape_of(self, four)), beside.new_empty(shape_of(self, cells), dtype=torch.float32)]

    @property
    def row_strides(self) -> dict[str, int]:
        step, sequence = (1, self.steps) if self.batch_first else (self.batch, 1)
        return {"row_step": step, "row_sequence": sequence}


class Kind(NamedTuple):
    """What a kernel is compiled for, beside the shape.

    tf32: products of float32. keeps: writes what the backward pass is to have. lengths: sequences have lengths of their own.
    """

    dtype: torch.dtype
    device: torch.device
    tf32: bool = False
    is_backward: bool = False
    keeps: bool = False
    lengths: bool = False

    def problem(self, cell: str, hidden: int, batch: int) -> Problem:
        name = str(self.dtype).removeprefix("torch.")
        return Problem(cell, hidden, batch, Arithmetic.of(name, "tf32" if self.tf32 else "ieee"), self.is_backward)


def macros(kind: Kind, form: Form) -> tuple[tuple[str, str], ...]:
    """What the source is compiled with."""
    problem, storage = form.problem, str(kind.dtype).removeprefix("torch.").upper()
    found = {"CELL": NN_CELLS.index(problem.cell), "HIDDEN": problem.hidden, f"STORAGE_{storage}": 1, **form.macros}
    found |= {"WIDTH": _width(problem), "KEEPS": int(kind.keeps), "LENGTHS": int(kind.lengths), "WATCHDOG_NS": WATCHDOG_NS}
    return tuple((name, str(value)) for name, value in found.items())


def _width(problem: Problem) -> int:
    """Bytes of weights that are read at once: as many as divide a row."""
    return gcd(problem.hidden * problem.arithmetic.bytes, _MOST_WIDE)


def make_kernel(shape: Shape, kind: Kind, form: Form) -> Kernel:
    """The kernel of a form, its arguments by name."""
    dtype, hidden, rows = kind.dtype, shape.hidden, shape.steps * shape.batch
    state = Array(dtype, shape.batch * hidden, True, (shape.batch, hidden))
    bias = Array(dtype, shape.wide, True, (shape.wide,))
    of_weight = (hidden, shape.wide) if kind.is_backward else (shape.wide, hidden)
    weight = Array(dtype, shape.wide * hidden, False, of_weight)
    output = strided(shape, "output", dtype, hidden)
    kept: dict[str, Any] = {"kept": Array(dtype, 4 * rows * hidden, True), "cells": Array(torch.float32, rows * hidden, True)}
    kept |= {"row_step": np.int64, "row_sequence": np.int64}
    if kind.is_backward:
        arguments = {**kept, **output, "weight": weight, "first_h": state, "first_c": state}
        arguments |= {**strided(shape, "d_output", dtype, hidden), "d_final_h": state, "d_final_c": state}
        arguments |= {"d_gates": Array(dtype, rows * shape.wide), "d_product": Array(dtype, rows * hidden, True)}
        arguments |= {"d_first_h": state, "d_first_c": state}
    else:
        arguments = {**strided(shape, "gates", dtype, shape.wide), "weight": weight, "bias_ih": bias, "bias_hh": bias}
        arguments |= {"first_h": state, "first_c": state, **output, "final_h": state, "final_c": state}
    arguments["lengths"] = Array(torch.int64, shape.batch, is_optional=True)
    arguments |= {} if kind.is_backward else kept
    if form.is_grid:
        arguments["handoff"] = Array(torch.uint8, form.handoff_bytes)
    else:
        arguments["left_over"] = Array(torch.uint8, form.left_over_bytes, is_optional=True)
    arguments |= {"status": np.int64, **dict.fromkeys(("steps", "batch", "is_reverse"), int)}
    name, macros_of = "persistent_backward" if kind.is_backward else "persistent_forward", macros(kind, form)
    if form.is_grid:
        return Kernel(_GRID_SOURCE, name, macros_of, arguments, kind.device, form.shared_bytes, is_cooperative=True)
    source = _SOURCES[kind.is_backward]
    return Kernel(source, name, macros_of, arguments, kind.device, form.shared_bytes, cluster=form.blocks)


@lru_cache(maxsize=4096)
def plan(shape: Shape, kind: Kind) -> tuple[Form, Kernel]:
    """How a layer is spread over the chip, and its kernel. Raises ValueError for what does not run, or does not fit."""
    if min(shape.steps, shape.batch, shape.hidden) < 1:
        raise ValueError(f"expected T, B and H of at least 1, got {shape.steps}, {shape.batch} and {shape.hidden}")
    if max(shape.steps, shape.wide * shape.batch) >= 2**30:
        raise ValueError(f"expected T and G * B * H below 2^30, got {shape.steps} and {shape.wide * shape.batch}")
    if kind.dtype not in DTYPES:
        raise ValueError(f"expected one of {', '.join(map(str, DTYPES))}, got {kind.dtype}")
    if reason := refusal(kind.device) or (training_refusal(kind.device) if kind.is_backward else None):
        raise ValueError(f"on {kind.device}: {reason}")
    status_of(kind.device)  # which is not to be made while a graph is captured
    form = choose(kind.problem(shape.cell, shape.hidden, shape.batch), Device.of(kind.device))
    if isinstance(form, str):
        raise ValueError(form)
    return form, make_kernel(shape, kind, form)


_statuses: dict[torch.device, Tensor] = {}
_making_one = threading.Lock()


def status_of(device: torch.device) -> Tensor:
    """[1], int32, in the host's memory: not 0 once a kernel on that device has given up a wait. It stays where it is."""
    found = _statuses.get(device)
    if found is None:
        with _making_one, torch.inference_mode(False):
            made = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=device.type == "cuda")
            found = _statuses.setdefault(device, made)
    return found


def check_status(device: torch.device) -> None:
    """Raises RuntimeError, once, after a launch that has given up, whose results are NaN. Each call asks before it launches."""
    status = status_of(device)
    if status.item():
        status.zero_()
        raise RuntimeError(
            f"an earlier launch of persistent_gpu on {device} is wrong: a block waited {WATCHDOG_NS / 1e9:g} s for the others "
            "and gave up"
        )


def _prepared(how: tuple[Shape, Kind, bool], arrays: Mapping[str, Tensor | None]) -> Prepared:
    shape, kind, is_reverse = how
    form, kernel = plan(shape, kind)
    integers = {"status": status_of(kind.device).data_ptr(), "steps": shape.steps, "batch": shape.batch, **shape.row_strides}
    for name in ("output", "d_output" if kind.is_backward else "gates"):
        integers |= strides(shape, name, arrays[name])
    return kernel.prepared(form.launch, arrays, **integers, is_reverse=int(is_reverse))


_launches = LayoutMemo(_prepared)


def _launch(shape: Shape, kind: Kind, is_reverse: bool, weight: Tensor, **arrays: Tensor | None) -> None:
    check_status(kind.device)
    form, weight = plan(shape, kind)[0], weight.contiguous()
    arrays["weight"] = weight.clone() if weight.data_ptr() % _width(form.problem) else weight
    if form.is_grid:  # all 0 in each replay of a graph, too
        arrays["handoff"] = weight.new_zeros(form.handoff_bytes, dtype=torch.uint8)
    else:
        arrays["left_over"] = weight.new_empty(form.left_over_bytes, dtype=torch.uint8) if form.left_over else None
    launch, pointers = _launches.find((shape, kind, is_reverse), arrays)
    launch(pointers)


def _dense(*given: Tensor | None) -> list[Tensor | None]:
    return [None if one is None else one.contiguous() for one in given]


def _filled(*own: Tensor | None) -> list[Tensor | None]:
    """None for those of no elements, which the cell does not have."""
    return [one if one is not None and one.numel() else None for one in own]


def _forward_keeping(gates: Tensor, weight: Tensor, *rest: Any, keeps: bool = True) -> list[Tensor]:
    *given, lengths, cell, batch_first, is_reverse, tf32 = rest
    gates, shape = adjacent(gates), Shape.of(gates, cell, batch_first)
    results, kept = shape.results(gates), shape.kept(gates) if keeps else []
    names = ("bias_ih", "bias_hh", "first_h", "first_c", "final_h", "final_c", "kept", "cells")
    arrays = dict(zip(names, [*_dense(*given), *_filled(*(*results, None)[1:3], *(kept or (None, None)))], strict=True))
    kind = Kind(gates.dtype, gates.device, tf32, keeps=keeps, lengths=lengths is not None)
    if keeps:  # raises where the backward pass would
        plan(shape, kind._replace(is_backward=True, keeps=False))
    _launch(shape, kind, is_reverse, weight, gates=gates, output=results[0], lengths=lengths, **arrays)
    return results + kept


def _forward(*given: Any) -> list[Tensor]:
    return _forward_keeping(*given, keeps=False)


def _backward(weight: Tensor, kept: Tensor, cells: Tensor, output: Tensor, d_output: Tensor, *rest: Any) -> list[Tensor]:
    *given, lengths, cell, batch_first, is_reverse, tf32 = rest
    output, d_output = adjacent(output), adjacent(d_output)
    shape = Shape.of_output(output, cell, batch_first)
    results = _room_for_gradients(shape, output)
    names = ("kept", "cells", "first_h", "first_c", "d_final_h", "d_final_c", "d_gates", "d_product", "d_first_h", "d_first_c")
    arrays = dict(zip(names, [*_filled(kept, cells), *_dense(*given), *_filled(*results)], strict=True))
    kind = Kind(output.dtype, output.device, tf32, is_backward=True)
    _launch(shape, kind, is_reverse, weight.t(), output=output, d_output=d_output, lengths=lengths, **arrays)
    return results


def _room_for_gradients(shape: Shape, beside: Tensor) -> list[Tensor]:
    """Of the pre-activations, of GRU's product for n, of the initial h and c; of 0 elements where a cell has none."""
    state, of_cell = (shape.batch, shape.hidden), (shape.batch, shape.hidden if shape.cell == "lstm" else 0)
    product = shape_of(shape, shape.hidden if shape.cell == "gru" else 0)
    return [beside.new_empty(size) for size in (shape_of(shape, shape.wide), product, state, of_cell)]


def _fake_keeping(gates: Tensor, weight: Tensor, *rest: Any) -> list[Tensor]:
    shape = Shape.of(gates, *rest[-4:-2])
    return shape.results(gates) + shape.kept(gates)


def _fake(gates: Tensor, weight: Tensor, *rest: Any) -> list[Tensor]:
    return Shape.of(gates, *rest[-4:-2]).results(gates)


def _fake_backward(weight: Tensor, kept: Tensor, cells: Tensor, output: Tensor, *rest: Any) -> list[Tensor]:
    return _room_for_gradients(Shape.of_output(output, *rest[-4:-2]), output)


_GIVEN = "Tensor gates, Tensor weight, Tensor? bias_ih, Tensor? bias_hh, Tensor? first_h, Tensor? first_c"
_HOW = "Tensor? lengths, str cell, bool batch_first, bool reverse, bool tf32"
_SAVED = "Tensor weight, Tensor kept, Tensor cells, Tensor output, Tensor d_output, Tensor? first_h, Tensor? first_c, "
_SAVED += "Tensor? d_final_h, Tensor? d_final_c"
library = torch.library.Library("pytest_ecornn", "FRAGMENT")
for _name, _arguments, _run, _faked in (
    ("persistent_forward", _GIVEN, _forward, _fake), ("persistent_forward_keeping", _GIVEN, _forward_keeping, _fake_keeping),
    ("persistent_backward", _SAVED, _backward, _fake_backward),
):  # fmt: skip
    library.define(f"{_name}({_arguments}, {_HOW}) -> Tensor[]")
    library.impl(_name, _run, "CUDA")
    torch.library.register_fake(f"pytest_ecornn::{_name}", _faked, lib=library)
