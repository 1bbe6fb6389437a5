"""The problem of a call of RNN, LSTM or GRU, of plain values that torch.compile reads too: module's options, kind of call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from pytest_ecornn.autotune import Problem
from pytest_ecornn.contract import Case, cells
from pytest_ecornn.implementations._common.autograd_ops import wants_gradient
from pytest_ecornn.nn.module_candidates import ModuleProblem
from pytest_ecornn.reference.precision import current, is_autocast


class ModuleOptions(NamedTuple):
    """The options of a module, as torch.nn names them. dropout: 0.5 for any that drops elements now: times do not differ."""

    mode: str
    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    bidirectional: bool
    training: bool
    dropout: float


class CallKind(NamedTuple):
    """Calls that one decision is about. T time steps, B sequences.

    dtype: of the input. autocast: that of autocast, or None. is_packed: of a PackedSequence. x_grad: whether the input or an
    initial state requires a gradient, weight_grad: whether a weight does.
    """

    steps: int
    batch: int
    is_packed: bool
    has_state: bool
    dtype: torch.dtype
    weight_dtype: torch.dtype
    autocast: torch.dtype | None
    tf32: bool
    x_grad: bool
    weight_grad: bool
    deterministic: bool
    device: torch.device


def options_of(module: Any) -> ModuleOptions:
    return ModuleOptions(
        module.mode, module.input_size, module.hidden_size, module.num_layers, module.bias, module.batch_first,
        module.bidirectional, module.training, 0.5 if module.training and module.dropout > 0 and module.num_layers > 1 else 0.0,
    )  # fmt: skip


def kind_of(module: Any, input: Any, rows: Tensor, hx: Any) -> CallKind:
    """The kind of a call. rows: the input, or a PackedSequence's data."""
    is_packed, weight = isinstance(input, PackedSequence), module._flat_weights[0]
    steps = len(input.batch_sizes) if is_packed else input.shape[1 if module.batch_first and input.dim() == 3 else 0]
    has_grad = torch.is_grad_enabled()
    return CallKind(
        steps, batch_of(module, input), is_packed, hx is not None, rows.dtype, rows.dtype if weight is None else weight.dtype,
        torch.get_autocast_dtype(rows.device.type) if is_autocast(rows.device) else None, is_tf32(rows.dtype),
        has_grad and wants_gradient([rows, *cells.unpack_state(hx)]), has_grad and requires_grad(module._flat_weights),
        torch.are_deterministic_algorithms_enabled(), rows.device,
    )  # fmt: skip


def module_problem(
    options: ModuleOptions, kind: CallKind, refusal: Callable[[], str | None], batch_sizes: Tensor | None
) -> ModuleProblem:
    """The problem of a kind of call. refusal, batch_sizes: as ModuleProblem's."""
    case = Case(
        cell=options.mode.lower(), steps=kind.steps, batch=kind.batch, input_size=options.input_size,
        hidden_size=options.hidden_size, layers=options.num_layers, bidirectional=options.bidirectional, bias=options.bias,
        dtype=_name(kind.dtype), precision="tf32" if kind.tf32 else "ieee", device=str(kind.device),
        batch_first=options.batch_first, ragged=kind.is_packed, has_state=kind.has_state,
        mode="training" if kind.x_grad or kind.weight_grad else "inference",
    )  # fmt: skip
    problem = Problem(
        case=case, caller="module", x_grad=kind.x_grad, weight_grad=kind.weight_grad,
        dropout=options.dropout > 0, evaluation=not options.training, deterministic=kind.deterministic,
        autocast="" if kind.autocast is None else f"{_name(kind.autocast)}_of_{_name(kind.weight_dtype)}",
    )  # fmt: skip
    make = partial(_make_on_meta, options, kind.weight_dtype)
    return ModuleProblem(problem, make, refusal, kind.device, kind.autocast, batch_sizes)


def _make_on_meta(options: ModuleOptions, dtype: torch.dtype, backend: str) -> Any:
    """A module of the same options without data, by a backend. No subclass of a user's."""
    from pytest_ecornn import nn  # which imports this module

    other = {"nonlinearity": options.mode.removeprefix("RNN_").lower()} if options.mode.startswith("RNN") else {}
    return {"LSTM": nn.LSTM, "GRU": nn.GRU}.get(options.mode, nn.RNN)(
        options.input_size, options.hidden_size, options.num_layers, bias=options.bias, batch_first=options.batch_first,
        bidirectional=options.bidirectional, dropout=options.dropout, device="meta", dtype=dtype, backend=backend,
        **other,
    )  # fmt: skip


def batch_of(module: Any, input: Any) -> int:
    if isinstance(input, PackedSequence):
        return int(input.batch_sizes[0])
    return 1 if input.dim() == 2 else input.shape[0 if module.batch_first else 1]


def requires_grad(weights: list[Tensor | None]) -> bool:
    """Whether any weight requires a gradient; quick where the first does."""
    first = weights[0]
    return (first is not None and first.requires_grad) or wants_gradient(weights)


def is_tf32(dtype: torch.dtype) -> bool:
    """Whether products of a dtype run in TF32 now."""
    return dtype == torch.float32 and current("rnn") == "tf32"


def _name(dtype: torch.dtype) -> str:
    """The name of a dtype in a Case."""
    return str(dtype).removeprefix("torch.")
