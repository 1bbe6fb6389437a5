"""Chooses what runs a call of RNN, LSTM or GRU that torch.compile traces: the fastest on the device, as for a CUDA graph."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from pytest_ecornn.autotune import ranks, select
from pytest_ecornn.autotune.selection import HEURISTIC, MEASURE, is_recomputed, no_data
from pytest_ecornn.nn.backend_choice import without_timing
from pytest_ecornn.nn.kernel_limits import is_static, next_power_of_2
from pytest_ecornn.nn.module_problem import CallKind, ModuleOptions, kind_of, module_problem, options_of

_VARYING_STEPS = 64
_MAX_FIRST_PASSES = 256
_first_passes: dict[Hashable, str] = {}  # backends of calls without gradients that may be recomputed with them


def choose_traced(module: Any, input: Any, hx: Any) -> tuple[str, str]:
    """The backend of a call that torch.compile traces, and its note.

    Of sizes that do not vary it is the stored winner on the device; the candidates are timed while the call is traced where
    none is stored. Of T or B that vary, and of a PackedSequence, it is the heuristic's choice, of T = _VARYING_STEPS.
    """
    rows = input.data if isinstance(input, PackedSequence) else input
    if not isinstance(rows, Tensor):
        return "torch", "torch"
    choice = without_timing(module, input, rows, hx)
    if choice is not None:
        return choice.captured, choice.notes
    backend: str = module._backend
    if backend == "persistent_gpu":
        return backend, backend
    steps, batch, *others = kind_of(module, input, rows, hx)
    is_fixed = rows is input and is_static(steps) and is_static(batch)
    sizes = (steps, batch) if is_fixed else (0, next_power_of_2(batch))
    return _decided(backend, no_data(rows), *options_of(module), *sizes, *others)  # type: ignore[no-any-return]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _decided(backend: str, obstacle: str, *values: Any) -> tuple[str, str]:
    """The backend of a graph, and its note. values: of ModuleOptions and CallKind, of sizes that vary with T 0.

    obstacle: why the call cannot be timed, or "". A call that torch.utils.checkpoint recomputes runs as in its first pass.
    """
    count = len(ModuleOptions._fields)
    options, kind = ModuleOptions(*values[:count]), CallKind(*values[count:])
    is_fixed, pass_key = kind.steps > 0, (options, kind._replace(x_grad=False, weight_grad=False))
    if is_recomputed() and (first := _first_passes.get(pass_key)):
        return first, f"{first}, as in the pass that autograd recomputes"
    kind = kind._replace(is_packed=False, steps=kind.steps or _VARYING_STEPS)
    timed = module_problem(options, kind, lambda: None, None)
    forced = os.environ.get("ECORNN_AUTO") or MEASURE
    mode = HEURISTIC if backend == HEURISTIC or (forced == MEASURE and not is_fixed) else forced
    with _as_called():
        obstacle = obstacle or _obstacle()
        decision, _ = select(timed.problem, kind.device, timed.choices, timed.candidate_names, mode, obstacle)
    name = decision.device
    if options.training and not timed.case.training:
        if len(_first_passes) >= _MAX_FIRST_PASSES:
            _first_passes.clear()
        _first_passes[pass_key] = name
    if not is_fixed and mode == HEURISTIC:
        return name, f"{name}; chosen without timing, as torch.compile traced sizes that vary"
    return name, f"{name} compiled; " * (name != decision.called) + decision.notes()


@contextmanager
def _as_called() -> Iterator[None]:
    """Clears torch's flag that it compiles, as it is the whole process's, and what is timed runs as it will be called."""
    before = getattr(torch.compiler, "_is_compiling_flag", None)
    if before is not None:
        torch.compiler._is_compiling_flag = False
    try:
        yield
    finally:
        if before is not None:
            torch.compiler._is_compiling_flag = before


def _obstacle() -> str:
    """Why nothing can be timed while a call is traced, or ""."""
    if torch.compiler.is_exporting():
        return "torch.export traces the call"  # with cuDNN disabled
    return "" if ranks.store() is None else "ranks may trace at different times"
