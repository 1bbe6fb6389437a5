"""The implementations that `auto` chooses from, without those that cannot win, and the calls by which they are timed.

These are on copies of the weights and random inputs of the case's sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module

import torch
from torch import Tensor, nn

from pytest_ecornn.autotune.selection import Choices
from pytest_ecornn.autotune.timing import Candidate, probe_lengths
from pytest_ecornn.contract import Case, Implementation, State, Weights, cells
from pytest_ecornn.implementations._common.min_cells import MIN_CELLS
from pytest_ecornn.implementations._common.recurrent_problem import NN_CELLS
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.implementations.auto import estimates

# By kind of device and cell, in the order in which ties are resolved. scan_gpu_log, row_major_gpu and cusparse_gpu never win.
_OF_NN_CELLS = {
    "cuda": ("cudnn", "persistent_gpu", "sparse_persistent_gpu", "transposed_gpu"), "cpu": ("fused_cpu", "torch_cpu"),
}  # fmt: skip
_OF_MIN_CELLS = {"cuda": ("scan_gpu", "scan_torch"), "cpu": ("scan_cpu", "scan_torch")}
_LOOP = "sequential"
_MAX_LOOP_STEPS = 4  # a step of the loop is some ten operators, each of which takes as long as a short scan
_SEED = 0  # of the inputs of timed calls
_MAX_SCAN_STEPS = 4096  # longer ones are timed at this length and half of it


@lru_cache(maxsize=1)
def implementations() -> dict[str, type[Implementation]]:
    """All that may be candidates, by name."""
    names = dict.fromkeys(name for table in (_OF_NN_CELLS, _OF_MIN_CELLS) for names in table.values() for name in names)
    return {name: _class_of(name) for name in (*names, _LOOP)}


def _class_of(name: str) -> type[Implementation]:
    module = import_module(f"pytest_ecornn.implementations.{name}")
    return next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Implementation) and value.__module__ == module.__name__
    )


def supported(case: Case, device: torch.device) -> tuple[list[str], dict[str, str]]:
    """Names of the implementations that run a case, the loop last, and why others do not."""
    tables = [table for cell_names, table in ((NN_CELLS, _OF_NN_CELLS), (MIN_CELLS, _OF_MIN_CELLS)) if case.cell in cell_names]
    names = [name for table in tables for name in table.get(device.type, ())]
    refusals = {name: implementations()[name]().refusal(case) for name in (*names, _LOOP)}
    if torch.are_deterministic_algorithms_enabled():
        refusals |= {name: "is not deterministic" for name in refusals if not implementations()[name].deterministic}
    return [name for name, why in refusals.items() if not why], {name: why for name, why in refusals.items() if why}


def device_of(case: Case) -> torch.device:
    return torch.device("cpu") if case.device == "cpu" else with_index(case.device)


def make_choices(case: Case, weights: Weights) -> Choices:
    """The candidates of a case, without those that cannot win by the cost models. weights: copied by each."""
    device = device_of(case)
    runnable, _ = supported(case, device)
    names = [name for name in runnable if name != _LOOP or len(runnable) == 1 or _is_short_scan(case)]
    if case.cell in NN_CELLS and device.type == "cuda":
        heuristic, pruned = _of_nn_cells(case, device, names)
    else:
        heuristic, pruned = names[0], {}
    copies = lru_cache(maxsize=1)(partial(copied, weights))
    calls = {name: partial(make_call, implementations()[name], case, copies, device) for name in names if name not in pruned}
    candidates = [Candidate(name, call) for name, call in calls.items()]
    lengths: tuple[int, ...] = (case.steps,) if case.steps <= _MAX_SCAN_STEPS else (_MAX_SCAN_STEPS // 2, _MAX_SCAN_STEPS)
    if is_linear(case):
        lengths = probe_lengths(case.steps)
    return Choices(candidates, heuristic, lengths, pruned, captures=not case.ragged, runnable=runnable)


def is_linear(case: Case) -> bool:
    """Whether the candidates' times from T 5 on are linear in T."""
    return case.cell in NN_CELLS and estimates.is_linear(case)


def _is_short_scan(case: Case) -> bool:
    return case.cell not in NN_CELLS and case.steps <= _MAX_LOOP_STEPS


def _of_nn_cells(case: Case, device: torch.device, names: list[str]) -> tuple[str, dict[str, str]]:
    """The implementation estimated to be the fastest, and why others are no candidates."""
    times_us = {"cudnn": estimates.cudnn_us(case)}
    if "persistent_gpu" in names and (persistent_us := estimates.persistent_us(case, device)):
        times_us["persistent_gpu"] = persistent_us
    times_us = {name: us for name, us in times_us.items() if name in names}
    if case.density < 1 and "sparse_persistent_gpu" in names:
        return "sparse_persistent_gpu", {}
    pruned = {name: why for name, why in estimates.pruned(times_us).items() if name != "cudnn"}
    if "persistent_gpu" in times_us and estimates.is_clear_win(times_us["persistent_gpu"], estimates.cudnn_us(case)):
        pruned["transposed_gpu"] = "persistent_gpu is estimated to be far faster than a launch a step"
    return min(times_us, key=times_us.__getitem__, default=names[0]), pruned


def copied(weights: Weights) -> Weights:
    """Copies of the weights, which no user's hook or optimizer sees."""
    parameters = {name: nn.Parameter(one.detach().clone(), one.requires_grad) for name, one in weights.items()}
    return Weights(parameters, weights.masks)


def make_call(
    cls: type[Implementation], case: Case, copies: Callable[[], Weights], device: torch.device, steps: int
) -> Callable[[], object]:
    """A call of an implementation on `steps` steps: forward, and in training the gradients of all leaves."""
    shorter = replace(case, steps=steps)
    weights = copies()
    layer = cls().build(shorter, weights)
    x, state, rest = _inputs(shorter, device)
    if not case.training:
        return lambda: _without_gradients(lambda: layer(x, state, *rest))
    leaves = [one for one in (x, *cells.unpack_state(state), *weights.values()) if one.requires_grad]
    incoming: list[Tensor] = []

    def train() -> object:
        with torch.enable_grad():
            output, _ = layer(x, state, *rest)
            if not incoming:
                incoming.append(torch.ones_like(output))
            return torch.autograd.grad(output, leaves, incoming, allow_unused=True)

    return train


def _without_gradients(call: Callable[[], object]) -> object:
    with torch.no_grad():
        return call()


def _inputs(case: Case, device: torch.device) -> tuple[Tensor, State, list[Tensor | None]]:
    """x, the initial states, and lengths and resets as a layer takes them, by a generator of their own."""
    generator = torch.Generator(device).manual_seed(_SEED)

    def values(*shape: int) -> Tensor:
        value = torch.empty(shape, dtype=getattr(torch, case.dtype), device=device).normal_(generator=generator)
        return value.requires_grad_(case.training)

    outer = (case.batch, case.steps) if case.batch_first else (case.steps, case.batch)
    x, hx, cell = values(*outer, cells.x_width(case)), [], cells.get(case.cell)
    if case.has_state:
        hx = [values(case.layers * case.directions, case.batch, case.hidden_size) for _ in cell.states]
    lengths = torch.linspace(case.steps, 1, case.batch).ceil().long() if case.ragged else None
    resets = torch.zeros(outer, dtype=torch.bool, device=device) if case.resets else None
    state = None if not hx else tuple(hx) if len(hx) > 1 else hx[0]
    return x, state, [lengths] if resets is None else [lengths, resets]
