"""Candidates that run a step a call, the state carried on: torch's, other people's and this project's, each judged first.

The judgement is the harness's own, of some carried steps from an initial state. Where a candidate holds rounded weights, it is
judged by weights that are rounded alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pytest_ecornn.nn
from pytest_ecornn.cases import contents
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Case, Declared, WeightRounding, cells
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.implementations._common import torch_nn
from pytest_ecornn.implementations._common.recurrent_problem import PARAMETERS
from pytest_ecornn.implementations.peers import jax_cpu, onnxruntime, torch_cell_loop
from pytest_ecornn.implementations.peers._peer import import_quietly
from pytest_ecornn.suites.published.common.candidates import WRONG
from pytest_ecornn.suites.published.common.item_rows import Unavailable
from pytest_ecornn.verification.verification import ReferenceResult, failed_tensors

TORCH, CELLS, ONNX, JAX, MODULE = "torch.nn", "torch cells", "ONNX Runtime", "JAX", "fused_cpu"
OUT, BOUND = "stream(x, state, out)", "stream.bound"
BFLOAT16, INT8 = "bound, bfloat16 weights", "bound, int8 weights"
NOT_INSTALLED = "not installed"
SHOWN = (NOT_INSTALLED, WRONG)  # reasons that a table's cell has
_ROUNDINGS: dict[str, WeightRounding] = {BFLOAT16: "bfloat16", INT8: "int8"}
_NEEDED = {ONNX: ("onnx", "onnxruntime"), JAX: ("jax",)}


@dataclass(frozen=True)
class StreamCall:
    """`step` reads x [B, I] and carries the state on. results: the output [B, H] and the states [L, B, H] of the last step."""

    x: Tensor
    step: Callable[[], Any]
    results: Callable[[], tuple[Tensor, GateTensors]]


class StreamProblem:
    """Steps of a case, from its initial state; makes the candidates that are right on them."""

    def __init__(self, case: Case):
        self._case, self._problem = case, contents.problem(case)

    def make(self, name: str) -> StreamCall:
        """The candidate of a name. Raises Unavailable for one that is wrong, or not installed."""
        if any(find_spec(package) is None for package in _NEEDED.get(name, ())):
            raise Unavailable(NOT_INSTALLED)
        call = _MAKERS[name](self._problem)
        declared = Declared("float32", weight_rounding=_ROUNDINGS.get(name, "none"))
        checks = self._expected.compare(self._run(call), declared)
        if message := failed_tensors(name, self._case, checks):
            print(message, flush=True)
            raise Unavailable(WRONG)
        return call

    def _run(self, call: StreamCall) -> dict[str, Tensor | None]:
        """All steps, one a call."""
        outputs = []
        for x in self._problem.x:
            call.x.copy_(x)
            call.step()
            outputs.append(call.results()[0].clone())
        names = (f"final {state}" for state in cells.get(self._case.cell).states)
        return {"output": torch.stack(outputs), **dict(zip(names, call.results()[1], strict=True))}

    @cached_property
    def _expected(self) -> ReferenceResult:
        return ReferenceResult(self._problem)


def _carried(problem: Problem, run: Callable[[Any, Any], tuple[Any, Any]], x: Tensor, argument: Any, state: Any) -> StreamCall:
    """Calls of a function (x, state) -> (output, next state). argument: x as the function takes it, in the same memory.

    state: of all layers, as torch.nn has it, or a list of each layer's.
    """
    output = None

    def step() -> None:
        nonlocal output, state
        output, state = run(argument, state)

    def results() -> tuple[Tensor, GateTensors]:
        states = state
        if isinstance(state, list):
            of_layers = [tuple(map(_to_tensor, layer)) for layer in state]
            states = cells.pack_state(cells.get(problem.case.cell), of_layers)
        return _to_tensor(output).view(problem.case.batch, -1), cells.unpack_state(states)

    return StreamCall(x, step, results)


def _to_tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(np.array(array))


def _run_layers(run_layer: Callable[..., Any], parameters: Sequence[Any], x: Any, states: list[Any]) -> tuple[Any, list[Any]]:
    """run_layer(x, state, parameters of a layer) -> (output, next state)."""
    finals = []
    for of_layer, state in zip(parameters, states, strict=True):
        x, final = run_layer(x, state, of_layer)
        finals.append(final)
    return x, finals


def _torch_cells(problem: Problem) -> StreamCall:
    x, has_c = _empty_x(problem), problem.case.cell == "lstm"
    modules = [torch_cell_loop.make_cell(problem.case, problem.weights, suffix) for suffix in _suffixes(problem)]

    def run_cell(x: Tensor, state: GateTensors, module: nn.Module) -> tuple[Tensor, GateTensors]:
        final = module(x, state) if has_c else (module(x, state[0]),)
        return final[0], final

    return _carried(problem, partial(_run_layers, run_cell, modules), x, x, _layer_states(problem))


def _jax(problem: Problem) -> StreamCall:
    """All layers in one compiled function, whose constants the weights are."""
    x, scan = _empty_x(problem), jax_cpu.compiled_scan(problem.case.cell)
    weights = [[problem.weights[name + suffix].numpy() for name in PARAMETERS] for suffix in _suffixes(problem)]

    def run_scan(x: Any, state: Any, weights: Any) -> tuple[Any, Any]:
        output, *final = scan(x, state, *weights, False, False)
        return output, tuple(final)

    compiled = import_quietly("jax").jit(partial(_run_layers, run_scan, weights))

    def run(x: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        output, finals = compiled(x, states)
        return np.asarray(output), finals  # which waits

    states = [tuple(state.numpy() for state in layer) for layer in _layer_states(problem)]
    return _carried(problem, run, x, x[None].numpy(), states)


def _empty_x(problem: Problem) -> Tensor:
    return torch.empty(problem.case.batch, problem.case.input_size)


def _layer_states(problem: Problem) -> list[GateTensors]:
    """Each layer's states [B, H]."""
    return list(zip(*(state.unbind() for state in problem.state), strict=True))


def _suffixes(problem: Problem) -> list[str]:
    return [suffix for _, _, suffix in cells.parameter_suffixes(problem.case)]


def _by_module(make: Callable[[Problem], nn.Module], problem: Problem) -> StreamCall:
    x = _empty_x(problem)
    return _carried(problem, make(problem), x, x[None], problem.state_argument)


def _own_module(problem: Problem) -> Any:
    case = problem.case
    make = getattr(pytest_ecornn.nn, case.cell.upper())
    module = make(case.input_size, case.hidden_size, case.layers, backend="fused_cpu").requires_grad_(False)
    module.load_state_dict(problem.weights)
    return module


def _onnx_runtime(problem: Problem) -> StreamCall:
    """Inputs and outputs are bound once, the state's to the same memory."""
    case = replace(problem.case, steps=1)
    session, states = onnxruntime.make_session(case, problem.weights), tuple(state.clone() for state in problem.state)
    x, output, binding = _empty_x(problem), torch.empty(1, 1, case.batch, case.hidden_size), session.io_binding()
    onnxruntime.bind_tensors(binding.bind_input, {"x": x[None], **onnxruntime.state_parts(case, "0", states)})
    onnxruntime.bind_tensors(binding.bind_output, {"output": output, **onnxruntime.state_parts(case, "n", states)})

    def step(run: Callable[[Any], None] = session.run_with_iobinding, arrays: tuple[Any, ...] = (x, output, states)) -> None:
        """arrays: what must live as long as the function."""
        run(binding)

    return StreamCall(x, step, lambda: (output[0, 0], states))


def _stream(problem: Problem, is_bound: bool, weight_dtype: torch.dtype | None = None) -> StreamCall:
    x, stream = _empty_x(problem), _own_module(problem).stream(problem.case.batch, weight_dtype)
    output, states = torch.empty(x.shape[0], problem.case.hidden_size), tuple(state.clone() for state in problem.state)
    out = output, states if len(states) > 1 else states[0]
    step = stream.bound(x, out) if is_bound else partial(stream, x, out[1], out)
    return StreamCall(x, step, lambda: (output, states))


_MAKERS: dict[str, Callable[[Problem], StreamCall]] = {
    TORCH: partial(_by_module, lambda problem: torch_nn.build_module(problem.case, problem.weights)),
    CELLS: _torch_cells,
    ONNX: _onnx_runtime,
    JAX: _jax,
    MODULE: partial(_by_module, _own_module),
    OUT: partial(_stream, is_bound=False),
    BOUND: partial(_stream, is_bound=True),
    BFLOAT16: partial(_stream, is_bound=True, weight_dtype=torch.bfloat16),
    INT8: partial(_stream, is_bound=True, weight_dtype=torch.int8),
}
NAMES = tuple(_MAKERS)
