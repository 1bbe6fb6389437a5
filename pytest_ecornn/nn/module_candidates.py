"""Backends of a recurrent module as candidates: modules of random parameters, timed as the user's module will run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from pytest_ecornn.autotune import Candidate, Problem
from pytest_ecornn.autotune.selection import Choices, Compilation
from pytest_ecornn.autotune.timing import probe_lengths
from pytest_ecornn.contract import Case, cells
from pytest_ecornn.implementations._common.autograd_ops import wants_gradient
from pytest_ecornn.implementations._common.compile_threads import KernelSource, compile_threads
from pytest_ecornn.implementations._common.host_path import host_path
from pytest_ecornn.implementations.auto import estimates
from pytest_ecornn.implementations.cudnn.known_issues import defect
from pytest_ecornn.implementations.persistent_gpu.plan import plan_of_case
from pytest_ecornn.nn import kernel_limits
from pytest_ecornn.nn.cpu_choice import fused_kernels, preferred_on_cpu
from pytest_ecornn.nn.kernel_limits import FUSED
from pytest_ecornn.reference.precision import current, is_autocast

NAMES = ("torch", "persistent_gpu")  # in the order in which ties are resolved
CPU_NAMES = ("torch", FUSED)
_SEED = 0
_EIGHT = 8  # sequences, of a multiple of which torch takes other algorithms of cuDNN


def module_choices(
    case: Case,
    device: torch.device,
    make_call: Callable[[str, int], Callable[[], object]] | None,
    refusal: str | None,
    torch_refusal: str | None,
    compilation: Compilation | None = None,
) -> Choices:
    """The candidates of a module's case, without the kernels where they do not run or cannot win by the cost models.

    make_call: as a candidate's, of its name too; None where nothing will be timed. refusal: why the kernels do not run.
    torch_refusal: why they run wherever they can. compilation: of the kernels, while which torch.nn may run.
    """
    call_of = make_call or _never
    if refusal or torch_refusal:
        name, other = ("torch", "persistent_gpu") if refusal else ("persistent_gpu", "torch")
        runnable = NAMES[: 1 + (refusal is None)]
        return Choices(
            [Candidate(name, partial(call_of, name))], name, (), {other: str(refusal or torch_refusal)}, runnable=runnable,
            compilation=compilation, compiled="torch",
        )  # fmt: skip
    times_us = {"torch": estimates.cudnn_us(case)}
    if (persistent_us := estimates.persistent_us(case, device)) is not None:
        times_us["persistent_gpu"] = persistent_us
    pruned = {name: why for name, why in estimates.pruned(times_us).items() if name != "torch"}
    candidates = [Candidate(name, partial(call_of, name)) for name in NAMES if name not in pruned]
    heuristic = min(times_us, key=times_us.__getitem__)
    lengths = probe_lengths(case.steps) if estimates.is_linear(case) else (case.steps,)
    return Choices(
        candidates, heuristic, lengths, pruned, captures=not case.ragged, runnable=NAMES, compilation=compilation,
        compiled="torch", may_run_meanwhile=partial(may_run_meanwhile, device),
    )  # fmt: skip


def may_run_meanwhile(device: torch.device) -> bool:
    """Whether torch.nn may run calls while kernels are compiled.

    Not where results are to be the same in each run, and not on a stream of the caller's, as before a capture.
    """
    if os.environ.get("ECORNN_COMPILE", "beside") == "wait" or torch.backends.cudnn.deterministic:
        return False
    return device.type == "cpu" or torch.cuda.current_stream(device) == torch.cuda.default_stream(device)


class KernelCompilation:
    """The compilation of the kernels that the calls of some cases launch."""

    def __init__(self, cases: Sequence[Case], device: torch.device):
        self._cases, self._device = cases, device

    @cached_property
    def _sources(self) -> list[KernelSource]:
        sources: list[KernelSource]
        if kernel_limits.kernels_on(self._device) == FUSED:
            sources = [kernel for case in self._cases for kernel in fused_kernels(case)]
        else:
            from pytest_ecornn.implementations.persistent_gpu.describe import kernel_codes

            sources = [code for case in self._cases for code in kernel_codes(plan_of_case(case, self._device))]
            sources += host_path().sources
        compile_threads().add(sources)
        return sources

    def is_running(self, others: bool = True) -> bool:
        """Whether some are being compiled. others: or any other kernel, whose compilation slows what would be timed now."""
        sources, threads = self._sources, compile_threads()
        return threads.is_compiling(sources) or (others and threads.is_busy)

    def wait(self) -> None:
        compile_threads().wait(self._sources)


def _never(name: str, steps: int) -> Callable[[], object]:
    raise AssertionError(f"expected that {name} is not timed")


def torch_refusal(problem: Problem, case: Case) -> str | None:
    """Why torch.nn is no candidate where the kernels run, or None. case: in the dtype that is computed in."""
    if problem.deterministic:
        return "cuDNN is not deterministic"
    if problem.autocast.startswith("bfloat16"):
        return "under autocast of bfloat16 cuDNN computes in float16"  # torch's AutocastRNN.cpp
    if problem.evaluation and case.training:
        return "cuDNN has no backward pass of a module that is not in training"
    return defect(case, torch.backends.cudnn.version() or 0)


@dataclass(frozen=True)
class ModuleProblem:
    """A problem of a module. make: a module of a backend on the meta device. autocast: its dtype, or None.

    refusal: why the kernels do not run the call. batch_sizes: of the call's PackedSequence, or None.
    """

    problem: Problem
    make: Callable[[str], Any]
    refusal: Callable[[], str | None]
    device: torch.device
    autocast: torch.dtype | None
    batch_sizes: Tensor | None

    @property
    def case(self) -> Case:
        return self.problem.case

    @property
    def _is_of_a_cpu(self) -> bool:
        return kernel_limits.kernels_on(self.device) == FUSED

    def choices(self) -> Choices:
        case = self._computed_case
        lengths = probe_lengths(case.steps)
        compilation = KernelCompilation(self.kernel_cases(lengths), self.device)
        if self._is_of_a_cpu:
            return Choices(
                [Candidate(name, partial(self._make_call, name)) for name in CPU_NAMES], preferred_on_cpu(case), lengths,
                captures=False, runnable=CPU_NAMES, compilation=compilation, compiled="torch",
                may_run_meanwhile=partial(may_run_meanwhile, self.device),
            )  # fmt: skip
        refusal, make_call = self.refusal(), self._make_call
        return module_choices(case, self.device, make_call, refusal, self.torch_refusal, None if refusal else compilation)

    def runs_after_compiling(self, backend: str) -> bool:
        """Whether torch.nn runs the call although a backend won: some of its kernels are still being compiled."""
        if backend == "torch" or self.torch_refusal is not None or not may_run_meanwhile(self.device):
            return False
        return KernelCompilation(self.kernel_cases(), self.device).is_running(others=False)

    def kernel_cases(self, lengths: Sequence[int] = ()) -> list[Case]:
        """The cases that kernels run in a call and in those of other lengths: with dropout each layer is one of its own."""
        case = self._computed_case
        cases = [replace(case, steps=steps) for steps in dict.fromkeys((case.steps, *lengths))]
        if not self.problem.dropout:
            return cases
        first = [replace(case, layers=1) for case in cases]
        return first + [replace(case, input_size=case.directions * case.hidden_size) for case in first]

    @property
    def candidate_names(self) -> tuple[str, ...]:
        """The backends that a decision may name."""
        if self._is_of_a_cpu:
            return CPU_NAMES
        return NAMES if self.torch_refusal is None else ("persistent_gpu",)

    @property
    def torch_refusal(self) -> str | None:
        if self._is_of_a_cpu:
            return None
        return torch_refusal(self.problem, self._computed_case)

    @property
    def _computed_case(self) -> Case:
        """The case in the dtype that autocast computes in."""
        return self.case if self.autocast is None else replace(self.case, dtype=str(self.autocast).removeprefix("torch."))

    @cached_property
    def _parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Random parameters that all candidates share, laid out by torch.nn for cuDNN."""
        module = self.make("torch").to_empty(device=self.device)
        generator, bound = torch.Generator(self.device).manual_seed(_SEED), self.case.hidden_size**-0.5
        for parameter in module.parameters():
            parameter.data.uniform_(-bound, bound, generator=generator)
            parameter.requires_grad_(self.problem.weight_grad)
        return list(module.named_parameters())

    def _make_call(self, name: str, steps: int) -> Callable[[], object]:
        """A call of a backend on `steps` steps: forward, and in training the gradients that the user's call computes."""
        module = self.make(name)
        for parameter_name, parameter in self._parameters:
            setattr(module, parameter_name, parameter)
        module.train(not self.problem.evaluation)
        x, hx = self._inputs(steps)
        rows = x.data if isinstance(x, PackedSequence) else x
        leaves = [one for one in (rows, *module.parameters()) if one.requires_grad]
        incoming: list[Tensor] = []

        def call() -> object:
            with torch.set_grad_enabled(self.case.training), self._autocast():
                output, _ = module.forward(x, hx)
                if not leaves:
                    return output
                output = output.data if isinstance(output, PackedSequence) else output
                if not incoming:
                    incoming.append(torch.ones_like(output))
            return torch.autograd.grad(output, leaves, incoming)

        return call

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, self.autocast)

    def _inputs(self, steps: int) -> tuple[Any, Any]:
        case, generator = self.case, torch.Generator(self.device).manual_seed(_SEED)

        def values(*shape: int) -> Tensor:
            dtype = getattr(torch, case.dtype)
            return torch.empty(shape, dtype=dtype, device=self.device).normal_(generator=generator)

        hx: Any = None
        if case.has_state:
            shape = (case.layers * case.directions, case.batch, case.hidden_size)
            values_of = [values(*shape) for _ in cells.get(case.cell).states]
            hx = tuple(values_of) if len(values_of) > 1 else values_of[0]
        if self.batch_sizes is not None:
            sizes = self.batch_sizes[:steps].clone()
            return PackedSequence(values(int(sizes.sum()), case.input_size).requires_grad_(self.problem.x_grad), sizes), hx
        outer = (case.batch, steps) if case.batch_first else (steps, case.batch)
        return values(*outer, case.input_size).requires_grad_(self.problem.x_grad), hx


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
        torch.get_autocast_dtype(rows.device.type) if is_autocast(rows.device) else None,
        kernel_limits.kernels_on(rows.device) != FUSED and is_tf32(rows.dtype),
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
    on_cpu = kernel_limits.kernels_on(kind.device) == FUSED
    is_linear = on_cpu or estimates.is_linear(case if kind.autocast is None else replace(case, dtype=_name(kind.autocast)))
    variants = ["eights"] * (not is_linear and not kind.batch % _EIGHT)
    variants += ["compiled_host"] * (not on_cpu and bool(host_path().sources))  # which makes the kernels' calls faster
    problem = Problem(
        case=case, caller="module", x_grad=kind.x_grad, weight_grad=kind.weight_grad,
        dropout=options.dropout > 0, evaluation=not options.training, deterministic=kind.deterministic,
        autocast="" if kind.autocast is None else f"{_name(kind.autocast)}_of_{_name(kind.weight_dtype)}",
        threads=torch.get_num_threads() if on_cpu else 0,
        is_linear=is_linear, variant="_".join(variants),
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
