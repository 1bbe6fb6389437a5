"""Chooses what runs a call of RNN, LSTM or GRU, the kernels or torch.nn, and remembers it by all that it depends on.

What torch.compile traces runs by the fastest on the device, as for a CUDA graph.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from pytest_ecornn.autotune import ranks, select
from pytest_ecornn.autotune.selection import HEURISTIC, MEASURE, Choices, is_recomputed, no_data
from pytest_ecornn.contract import cells
from pytest_ecornn.implementations._common.autograd_ops import wants_gradient
from pytest_ecornn.nn import kernel_limits
from pytest_ecornn.nn.autocast import autocast_of
from pytest_ecornn.nn.calls import missing_transform, store_bounded
from pytest_ecornn.nn.cpu_choice import refusal_of_auto, refusal_on_cpu
from pytest_ecornn.nn.kernel_limits import FUSED, is_static, next_power_of_2, refusal_of_sizes
from pytest_ecornn.nn.module_candidates import (
    CallKind,
    ModuleOptions,
    ModuleProblem,
    batch_of,
    is_tf32,
    kind_of,
    module_problem,
    options_of,
    requires_grad,
)
from pytest_ecornn.nn.short_calls import Choice, ShortCall, ShortCalls
from pytest_ecornn.nn.tracing import constant_in_graphs
from pytest_ecornn.reference.precision import reader

_MAX_CHOICES, _MAX_FIRST_PASSES = 1024, 256
_VARYING_STEPS = 64  # of a traced call whose T varies
_first_passes: dict[Hashable, str] = {}  # backends of traced calls without gradients that may be recomputed with them
_rnn_precision = reader("rnn")
_BY_TORCH = Choice("torch", "torch", "torch")  # which says what is wrong with a call
_TRACED = Choice("torch", "torch", "torch: torch.jit traces the call", is_final=False)
OF_LENGTHS = Choice(*("persistent_gpu",) * 2, "persistent_gpu: with lengths the kernels run wherever they can, untimed")


class BackendChooser:
    """The choices of a module."""

    def __init__(self) -> None:
        self._choices: dict[Hashable, Choice] = {}
        self._first_passes: dict[Hashable, Choice] = {}  # of calls that may be recomputed by another choice
        self.short = ShortCalls()
        self.on_cpu: Choice | None = None  # that of all calls there

    def forget(self) -> None:
        """Forgets all choices, of a module whose parameters have another device or dtype."""
        self._choices.clear()
        self._first_passes.clear()
        self.short.clear()
        self.on_cpu = None

    def __reduce__(self) -> Any:
        return BackendChooser, ()

    def choose(self, module: Any, input: Any, hx: Any) -> Choice:
        """The choice of a call. What torch.utils.checkpoint recomputes runs as in the first pass.

        Raises ValueError where a named backend does not run the call.
        """
        rows = input.data if isinstance(input, PackedSequence) else input
        if not isinstance(rows, Tensor):
            return _BY_TORCH
        backend = module._backend
        if _is_always_torch(backend, rows.device):
            elsewhere = _elsewhere(module, rows.device)
            self.on_cpu = elsewhere if rows.is_cpu else self.on_cpu
            return elsewhere
        if torch._C._get_tracing_state() is not None and backend != FUSED and kernel_limits.kernels_on(rows.device) == FUSED:
            return _TRACED
        sizes = rows.shape if rows is input else (len(input.batch_sizes), int(input.batch_sizes[0]))
        dtype, has_grad = rows.dtype, torch.is_grad_enabled()
        key = (
            sizes,
            dtype,
            rows.get_device(),
            has_grad and (requires_grad(module._flat_weights), rows.requires_grad),
            module.training,
            hx is not None and _of_states(hx),
            torch._C._get_deterministic_algorithms(),
            torch._C._is_any_autocast_enabled() and torch.get_autocast_dtype(rows.device.type),
            dtype is torch.float32 and _rnn_precision(),
            type(rows),
            rows.is_cpu and torch.get_num_threads(),
        )
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choose(key, module, input, rows, hx)
        elif choice.called == "torch" and not self._first_passes and not choice.is_captured:
            return choice  # torch.nn runs under any transform
        elif missing_transform() is not None:
            return choose_untried(module, input, rows, hx)._replace(is_final=False)
        first = self._first_passes.get(sizes)
        if is_recomputed():
            return self._as_first(first or choice, choice, module, input, rows, hx)
        if first is not None and not first.is_final and torch._C._autograd._top_saved_tensors_default_hooks(True):
            return first  # torch.utils.checkpoint may compute calls before this one again
        if not choice.is_final or (not has_grad and module.training):
            store_bounded(self._first_passes, _MAX_CHOICES, sizes, choice)
        elif self._first_passes:
            self._first_passes.pop(sizes, None)
        return choice

    def remember(self, module: Any, x: Tensor, hx: Any, lengths: Tensor | None, choice: Choice) -> None:
        """Shortens calls like one that has been made, by what ran it."""
        if choice.is_final and not is_recomputed():
            self.short.add(module, x, hx, lengths, choice)

    def short_call(self, module: Any, x: Tensor, hx: Any, lengths: Tensor | None) -> ShortCall | None:
        """The short form of a call, or None where it has none, or none yet."""
        if lengths is not None:  # its choice depends on no other call
            return self.short.get(module, x, hx, lengths)
        has_grad = torch.is_grad_enabled()
        if has_grad and self._first_passes and x.shape in self._first_passes:
            return None  # it may compute that one again
        call = self.short.get(module, x, hx, None)
        if call is not None and not has_grad and module.training and self.on_cpu is None:
            store_bounded(self._first_passes, _MAX_CHOICES, x.shape, call.choice)
        return call

    def _as_first(self, first: Choice, choice: Choice, module: Any, input: Any, rows: Tensor, hx: Any) -> Choice:
        """The first pass's choice, unless that are kernels which do not run the call with gradients."""
        is_run = first.called == "torch" or not _refusal_of_sizes(module, input, rows, hx)
        return first if is_run else choice

    def _choose(self, key: Hashable, module: Any, input: Any, rows: Tensor, hx: Any) -> Choice:
        choice = choose_untried(module, input, rows, hx)
        if choice.is_final:
            store_bounded(self._choices, _MAX_CHOICES, key, choice)
        return choice


def _of_states(hx: Any) -> tuple[Any, ...]:
    """Dimensions of initial states, and whether they require gradients."""
    return tuple([(state.dim(), state.requires_grad) for state in cells.unpack_state(hx)])


_choices_elsewhere: dict[tuple[str, torch.device], Choice] = {}


def _is_always_torch(backend: str, device: torch.device) -> bool:
    """Whether no kernels run on a device, or none of a backend on a CPU, where a call is worth shortening."""
    if backend in ("persistent_gpu", FUSED):
        return False
    return device.type != "cuda" if backend == "torch" else kernel_limits.kernels_on(device) is None


def _elsewhere(module: Any, device: torch.device) -> Choice:
    """The choice on a device where the kernels never run."""
    choice = _choices_elsewhere.get((module._backend, device))
    if choice is None:
        reason = "backend is torch" if module._backend == "torch" else f"no kernels run on {device}"
        choice = _choices_elsewhere[module._backend, device] = Choice("torch", "torch", f"torch: {reason}")
    return choice


def choose_untried(module: Any, input: Any, rows: Tensor, hx: Any) -> Choice:
    """The choice of a call whose kind the module does not remember. rows: the input, or a PackedSequence's data."""
    backend = module._backend
    if backend == FUSED:
        return _fused(module, input, rows, hx)
    choice = without_timing(module, input, rows, hx, checks_sizes=backend == "persistent_gpu")
    if choice is not None:
        return choice._replace(is_final=missing_transform() is None)
    if backend == "persistent_gpu":
        return Choice(backend, backend, backend)
    refusal = partial(_refusal_of_sizes, module, input, rows, hx)
    batch_sizes = input.batch_sizes if isinstance(input, PackedSequence) else None
    timed = module_problem(options_of(module), kind_of(module, input, rows, hx), refusal, batch_sizes)
    mode = "heuristic" if backend == "heuristic" else ""
    decision, is_final = select(timed.problem, rows.device, timed.choices, timed.candidate_names, mode, obstacle=no_data(rows))
    choice = Choice(decision.called, decision.device, decision.notes(), is_final)
    return _until_compiled(choice) if is_final and timed.runs_after_compiling(decision.called) else choice


def _fused(module: Any, input: Any, rows: Tensor, hx: Any) -> Choice:
    """The choice of fused_cpu. Raises ValueError where it does not run the call; torch.nn says what is wrong with its form."""
    if rows.numel() == 0 or not _has_right_dimensions(module, input, hx):
        return _BY_TORCH
    if reason := refusal_on_cpu(module, input, rows, hx):
        raise ValueError(f"backend fused_cpu: {reason}")
    return Choice(FUSED, FUSED, FUSED)


def without_timing(module: Any, input: Any, rows: Tensor, hx: Any, checks_sizes: bool = True) -> Choice | None:
    """torch.nn, where it alone runs the call or says what is wrong with it, or None."""
    if rows.numel() == 0 or not _has_right_dimensions(module, input, hx):
        return _BY_TORCH
    reason = _refusal(module, rows.device)
    if reason is None and kernel_limits.kernels_on(rows.device) == FUSED:
        reason = refusal_of_auto(module, input, rows, hx)
    elif reason is None and checks_sizes:
        reason = _refusal_of_sizes(module, input, rows, hx)
    if reason and module._backend == "persistent_gpu":
        raise ValueError(reason)
    return Choice("torch", "torch", f"torch: {reason}") if reason else None


def choose_with_lengths(module: Any, input: Tensor, hx: Any) -> Choice:
    """The choice of a padded call with lengths, traced or not. Raises ValueError where a named backend does not run it."""
    if module._backend == FUSED:
        return _fused(module, input, input, hx)
    is_chosen = kernel_limits.kernels_on(input.device) == FUSED and module._backend in ("auto", "heuristic")
    if is_chosen and not torch.compiler.is_compiling():  # as without lengths, with which torch.nn takes longer
        return cast(Choice, module._chooser.choose(module, input, hx))
    if (choice := without_timing(module, input, input, hx)) is not None:
        return choice
    if module._backend == "auto" and _is_forced("torch"):
        return Choice("torch", "torch", "torch; forced: ECORNN_AUTO=torch")
    if torch.compiler.is_compiling() or module._backend == "persistent_gpu" or no_data(input):
        return OF_LENGTHS
    kind = kind_of(module, input, input, hx)._replace(is_packed=True)
    problem = module_problem(options_of(module), kind, lambda: None, None)
    return _until_compiled(OF_LENGTHS) if problem.runs_after_compiling("persistent_gpu") else OF_LENGTHS


@constant_in_graphs
def _is_forced(name: str) -> bool:
    return os.environ.get("ECORNN_AUTO") == name


def _until_compiled(choice: Choice) -> Choice:
    """torch.nn for now."""
    return Choice("torch", "torch", f"torch until the kernels are compiled; then {choice.notes}", is_final=False)


def _has_right_dimensions(module: Any, input: Any, hx: Any) -> bool:
    if isinstance(input, PackedSequence):
        return True
    dimensions = [one.dim() for one in cells.unpack_state(hx)]
    count = 2 if module.mode == "LSTM" else 1
    return input.dim() in (2, 3) and dimensions in ([], [input.dim()] * count)


def _refusal(module: Any, device: torch.device) -> str | None:
    """Why the kernels run no call of a module on a device now, or None."""
    if missing := missing_transform():
        return f"the kernels have {missing}"
    if module._backend == "torch":
        return "backend is torch"
    kernels = kernel_limits.kernels_on(device)
    if kernels is None or (module._backend == "persistent_gpu" and kernels == FUSED):
        return f"on {device}: the kernels run on a CUDA device"
    if module.proj_size:
        return f"expected proj_size 0, got {module.proj_size}: the kernels do not project states"
    return None


def _refusal_of_sizes(module: Any, input: Any, rows: Tensor, hx: Any) -> str | None:
    """Why the kernels do not run a call of those sizes and that dtype, or None."""
    if kernel_limits.kernels_on(rows.device) == FUSED:
        return refusal_on_cpu(module, input, rows, hx)
    device, batch = rows.device, batch_of(module, input)
    if torch.compiler.is_compiling() and not is_static(batch):
        batch = next_power_of_2(batch)  # fewer graphs are made
    size = module.mode, batch, module.hidden_size
    if not refusal_of_sizes(*size, rows.dtype, device, torch.is_grad_enabled(), False):
        return None  # what runs in full precision and in training runs under autocast, in TF32 and without gradients
    dtype = autocast_of(device)(rows[:0]).dtype
    trains = wants_gradient([rows, *cells.unpack_state(hx), *module._flat_weights])
    return refusal_of_sizes(*size, dtype, device, trains, is_tf32(dtype))


def choose_traced(module: Any, input: Any, hx: Any) -> tuple[str, str]:
    """The backend of a call that torch.compile traces, and its note.

    Of sizes that do not vary it is the stored winner on the device; the candidates are timed while the call is traced where
    none is stored. Of T or B that vary, and of a PackedSequence, it is the heuristic's choice, of T = _VARYING_STEPS.
    """
    rows = input.data if isinstance(input, PackedSequence) else input
    if not isinstance(rows, Tensor):
        return "torch", "torch"
    choice = _fused(module, input, rows, hx) if module._backend == FUSED else without_timing(module, input, rows, hx)
    if choice is not None:
        return choice.captured, choice.notes
    backend: str = module._backend
    if backend == "persistent_gpu":
        return backend, backend
    steps, batch, *others = kind_of(module, input, rows, hx)
    is_fixed = rows is input and is_static(steps) and is_static(batch)
    sizes = (steps, batch) if is_fixed else (0, next_power_of_2(batch))
    return _decided(backend, no_data(rows), *options_of(module), *sizes, *others)


@constant_in_graphs
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
        decision, _ = select(timed.problem, kind.device, partial(_waiting, timed), timed.candidate_names, mode, obstacle)
    name = decision.device
    if options.training and not timed.case.training:
        store_bounded(_first_passes, _MAX_FIRST_PASSES, pass_key, name)
    if not is_fixed and mode == HEURISTIC:
        return name, f"{name}; chosen without timing, as torch.compile traced sizes that vary"
    return name, f"{name} compiled; " * (name != decision.called) + decision.notes()


def _waiting(timed: ModuleProblem) -> Choices:
    """The candidates of a traced call, which no other runs until the kernels are compiled."""
    return replace(timed.choices(), may_run_meanwhile=bool)


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
