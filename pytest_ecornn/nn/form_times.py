"""Times on a CUDA device of persistent_gpu's recurrence by forms that are named, beside what is estimated of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, MathMode, ProblemSize
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.implementations.persistent_gpu import (
    kernel,
    ops,  # noqa: F401  (registers torch's ops)
)
from pytest_ecornn.implementations.persistent_gpu.blocks.config import BlockConfig
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import candidate_configs, estimated_us_with_queueing
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape
from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions
from pytest_ecornn.measurement.alternating import Arm, Replay, measure_interleaved

_STEPS, _ROUNDS = 128, 5
_OPS = torch.ops.pytest_ecornn


@dataclass(frozen=True)
class Measured:
    """model_us, us: a step by the model, and by the clock the least of some. error: how far from the first form's at most."""

    form: Form
    model_us: float
    us: float
    error: float


class Recurrence:
    """The recurrence on tensors of its own; returns its results. moved_bytes: what it reads and writes, weights apart."""

    def __init__(self, problem: ProblemSize, dtype: torch.dtype, steps: int = _STEPS, device: str = "cuda"):
        kind: Any = {"dtype": dtype, "device": device}
        width, bound = GATES[problem.cell] * problem.hidden, problem.hidden**-0.5
        options = RNNOptions(
            problem.cell, False, False, projected=True, tf32=problem.arithmetic == MathMode.of("float32", "tf32")
        )
        gates = torch.randn(steps, problem.batch, width, **kind)
        weight = torch.empty(width, problem.hidden, **kind).uniform_(-bound, bound)
        bias = torch.empty(width, **kind).uniform_(-bound, bound)
        layer: Any = (gates, [], [None, weight, bias, bias])
        if problem.is_backward:
            output, *states, saved_gates, saved_cells = _OPS.persistent_forward_keeping(*layer, None, *options)
            kept, d_output = [output, saved_gates, saved_cells], torch.randn_like(output)
            read, d_results = [*kept, d_output], [d_output, *[None] * len(states)]
            wanted = [True, False, False, False, False]  # the pre-activations' gradient alone
            self._run = partial(_OPS.persistent_backward, wanted, *layer, kept, d_results, None, *options)
        else:
            read, self._run = [gates], partial(_OPS.persistent_forward, *layer, None, *options)
        self.moved_bytes = sum(tensor.nbytes for tensor in (*read, *self()))

    def __call__(self) -> list[Tensor]:
        results: list[Tensor] = self._run()
        return results


def best_candidates(problem: ProblemSize, device: Device, most: int) -> list[Form]:
    """Returns at most `most` forms of each kind, best first by the model."""
    kinds: dict[str, list[Form]] = {}
    for form in sorted(candidate_configs(problem, device), key=lambda form: estimated_us_with_queueing(form, device)):
        kinds.setdefault(form.kind, []).append(form)
    return [form for forms in kinds.values() for form in forms[:most]]


@contextmanager
def force_config(form: Form) -> Iterator[None]:
    """Within it passes of the form's problem are of that form, if it does what they need. Not for several threads at once."""
    usual = kernel.compile_layer

    def plan(shape: Shape, spec: KernelSpec) -> Any:
        is_other = spec.problem(shape.cell, shape.hidden, shape.batch) != form.problem
        if is_other or (spec.inputs and isinstance(form, BlockConfig)):
            return usual(shape, spec)
        return form, kernel.make_kernel(spec, form)

    kernel.get_layer_kernel.cache_clear()  # but not the usual plans, which take their kernels with them
    try:
        with patch.object(kernel, "compile_layer", plan):
            yield
    finally:
        kernel.get_layer_kernel.cache_clear()


def measure(forms: Sequence[Form], dtype: torch.dtype, rounds: int = _ROUNDS) -> list[Measured]:
    """Measures forms of one problem on the current CUDA device, in blocks that alternate.

    Raises RuntimeError where a launch gave up.
    """
    device = with_index("cuda")
    calls, arms = [], []
    for form in forms:
        torch.manual_seed(0)
        with force_config(form):
            calls.append(Recurrence(form.problem, dtype))
            arms.append(Arm([Replay(calls[-1])], _STEPS))
    measure_interleaved(arms, rounds)
    kernel.status_of(device).check()  # which replays do not ask
    expected = calls[0]()[0].float() if calls else torch.zeros(())
    measured = []
    for form, call, arm in zip(forms, calls, arms, strict=True):
        with force_config(form):
            error = (call()[0].float() - expected).abs().max().item()
        model_us = estimated_us_with_queueing(form, Device.of(device))
        measured.append(Measured(form, model_us, min(arm.samples_us), error))
    return measured
