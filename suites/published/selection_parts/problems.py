"""Problems on which `auto` chooses: EcoRNN's language models, DeepBench's layers, and layers drawn from a distribution.

DeepBench's layers have I = H, one layer, one direction.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Any

import torch
from torch import nn

import pytest_ecornn.nn
from pytest_ecornn.cases.case_sets import case_set
from pytest_ecornn.reference.precision import fp32_precision
from pytest_ecornn.suites.published.deepbench import is_training

AUTO, BASELINE = "auto", "torch.nn"
_OURS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN", "mingru": "MinGRU", "minlstm": "MinLSTM"}
PRECISIONS = ("float32", "tf32", "bfloat16", "float16")
MODES = ("inference", "training")
MIN_CELLS = ("mingru", "minlstm")
_MAX_STEPS = 750
_MAX_FLOP = 1e12  # of a drawn forward pass
_MAX_STATES = 2**26  # T * B * H * L * D of a drawn problem


def backends(problem: SelectionProblem, device: torch.device) -> tuple[str, ...]:
    """The backends that `auto` chooses from, the baseline first."""
    if problem.cell not in MIN_CELLS:
        return (BASELINE, "persistent_gpu")[: 1 + (device.type == "cuda")]
    return ("scan_gpu", "scan_torch", "loop") if device.type == "cuda" else ("scan_cpu", "scan_torch", "loop")


def make_module(problem: SelectionProblem, backend: str, device: torch.device) -> nn.Module:
    """The module of torch.nn, or this project's with a backend; in evaluation where it computes no gradients."""
    os.environ.setdefault("ECORNN_COMPILE", "wait")  # what is measured is the choice, not what runs before it
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
    return lambda: torch.autograd.grad(module(x)[0], leaves, incoming)


@dataclass(frozen=True)
class SelectionProblem:
    """A module and its call. precision: of PRECISIONS. directions: 1 or 2."""

    set: str
    cell: str
    layers: int
    input_size: int
    hidden_size: int
    batch: int
    steps: int
    directions: int
    precision: str
    mode: str

    @property
    def dtype(self) -> str:
        return "float32" if self.precision == "tf32" else self.precision

    def __str__(self) -> str:
        layers = f"{self.layers} x " * (self.layers > 1)
        sizes = f"{self.cell} {layers}{self.hidden_size}, I {self.input_size}, B {self.batch}, T {self.steps}"
        return f"{sizes}{', both directions' * (self.directions > 1)}, {self.precision}"


def ecornn() -> Iterator[SelectionProblem]:
    """Two layers of 650 and of 200, batch 32, 35 steps: EcoRNN's language models, by both cells."""
    for hidden, cell, precision, mode in product((650, 200), ("lstm", "gru"), PRECISIONS, MODES):
        yield SelectionProblem("ecornn", cell, 2, hidden, hidden, 32, 35, 1, precision, mode)


def deepbench() -> Iterator[SelectionProblem]:
    """DeepBench's problems in float16 and TF32; those of its training set in both modes, of its inference sets forward."""
    origins = case_set("deepbench").items()
    kinds = ((is_training(origin), case.cell, case.hidden_size, case.batch, case.steps) for case, origin in origins)
    shapes = dict.fromkeys(kinds)
    for has_training, cell, hidden, batch, steps in shapes:
        for precision, mode in product(("float16", "tf32") if steps <= _MAX_STEPS else (), MODES[: 1 + has_training]):
            yield SelectionProblem("deepbench", cell, 1, hidden, hidden, batch, steps, 1, precision, mode)


def drawn(seed: int, count: int) -> Iterator[SelectionProblem]:
    """`count` layers of LSTM, GRU and RNN, each in both modes.

    Cell (tanh and relu are half of RNN's each) and precision: uniform. L: 1, 2, 3, 4 with 50, 30, 10, 10 %. Both directions:
    25 %. Log-uniform: I of 40 to 1536, H of 48 to 2048 (four of five a multiple of 8), B of 1 to 1024, T of 7 to 300. Drawn
    anew above 1 TFLOP a forward pass.
    """
    random = Random(seed)
    for _ in range(count):
        problem = _drawn(random)
        while _is_too_large(problem):
            problem = _drawn(random)
        yield from (replace(problem, mode=mode) for mode in MODES)


def _drawn(random: Random) -> SelectionProblem:
    def log_uniform(low: int, high: int) -> int:
        return round(math.exp(random.uniform(math.log(low), math.log(high))))

    cell = random.choice(("lstm", "gru", random.choice(("rnn_tanh", "rnn_relu"))))
    layers = random.choices((1, 2, 3, 4), (50, 30, 10, 10))[0]
    width, hidden, batch, steps = log_uniform(40, 1536), log_uniform(48, 2048), log_uniform(1, 1024), log_uniform(7, 300)
    if random.random() < 0.8:
        hidden = (hidden + 4) // 8 * 8
    directions = 1 + (random.random() < 0.25)
    return SelectionProblem(
        "drawn", cell, layers, width, hidden, batch, steps, directions, random.choice(PRECISIONS), "inference"
    )


def _is_too_large(problem: SelectionProblem) -> bool:
    gates, hidden, layers = {"lstm": 4, "gru": 3}.get(problem.cell, 1), problem.hidden_size, problem.layers
    states = problem.steps * problem.batch * hidden * problem.directions  # of a layer
    widths = problem.input_size + (layers - 1) * problem.directions * hidden + layers * hidden
    return 2.0 * states * gates * widths > _MAX_FLOP or states * layers > _MAX_STATES


def drawn_scans(seed: int, count: int) -> Iterator[SelectionProblem]:
    """`count` layers of minGRU and minLSTM in float32, each in both modes: H of 16 to 512, B of 1 to 64, T of 1 to 1024."""
    random = Random(seed)
    for _ in range(count):
        hidden, batch, steps = (round(math.exp(random.uniform(0, math.log(most)))) for most in (512, 64, 1024))
        hidden = max(16, hidden)
        for mode in MODES:
            yield SelectionProblem("scans", random.choice(MIN_CELLS), 1, hidden, hidden, batch, steps, 1, "float32", mode)
