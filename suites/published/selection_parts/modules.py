"""A problem's modules by backend, of the same random parameters, and their calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

import pytest_ecornn.nn
from pytest_ecornn.reference.precision import fp32_precision
from pytest_ecornn.suites.published.selection_parts.problems import MIN_CELLS, SelectionProblem

AUTO, BASELINE = "auto", "torch.nn"
_OURS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN", "mingru": "MinGRU", "minlstm": "MinLSTM"}


def backends(problem: SelectionProblem, device: torch.device) -> tuple[str, ...]:
    """The backends that `auto` chooses from, the baseline first."""
    if problem.cell not in MIN_CELLS:
        return (BASELINE, "persistent_gpu")[: 1 + (device.type == "cuda")]
    return ("scan_gpu", "scan_torch", "loop") if device.type == "cuda" else ("scan_cpu", "scan_torch", "loop")


def make_module(problem: SelectionProblem, backend: str, device: torch.device) -> nn.Module:
    """The module of torch.nn, or this project's with a backend; in evaluation where it computes no gradients."""
    source: Any = torch.nn if backend == BASELINE else pytest_ecornn.nn
    options: dict[str, Any] = {} if backend == BASELINE else {"backend": backend}
    if problem.cell.startswith("rnn"):
        options["nonlinearity"] = problem.cell.removeprefix("rnn_")
    torch.manual_seed(0)
    module: nn.Module = getattr(source, _OURS[problem.cell])(
        problem.input_size, problem.hidden_size, problem.layers, bidirectional=problem.directions > 1, device=device,
        dtype=getattr(torch, problem.dtype), **options,
    )  # fmt: skip
    return module.train(problem.mode == "training")


def precision_set(problem: SelectionProblem) -> AbstractContextManager[None]:
    """Sets the precision in which cuDNN multiplies float32."""
    if not torch.cuda.is_available():
        return nullcontext()
    return fp32_precision("rnn", "tf32" if problem.precision != "float32" else "ieee")


def make_call(problem: SelectionProblem, module: nn.Module, device: torch.device) -> Callable[[], Any]:
    """A forward pass without gradients, or one with the gradients of x and of all parameters."""
    generator = torch.Generator(device).manual_seed(0)
    shape = problem.steps, problem.batch, problem.input_size
    x = torch.randn(shape, generator=generator, device=device, dtype=getattr(torch, problem.dtype))
    if problem.mode == "inference":

        def infer() -> Any:
            with torch.no_grad():
                return module(x)[0]

        return infer
    x.requires_grad_()
    leaves, shape_out = [x, *module.parameters()], (*shape[:2], problem.hidden_size * problem.directions)
    incoming = torch.randn(shape_out, generator=generator, device=device, dtype=x.dtype)

    def train() -> Any:
        return torch.autograd.grad(module(x)[0], leaves, incoming)

    return train
