"""Runs a candidate on a problem and judges every tensor that comes out: output, final states and all gradients."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pytest_ecornn import cells, comparison, contents, yardstick
from pytest_ecornn.comparison import Array, Comparison, Error, Mask
from pytest_ecornn.contents import Problem
from pytest_ecornn.contract import Case, Implementation, Layer, Weights

Tensors = dict[str, Tensor | None]


class WrongResult(Exception):
    """A candidate broke the contract in a way that leaves nothing to compare."""


class Poisoned(TorchFunctionMode):
    """Within it, memory that torch.empty and its kin return uninitialised holds NaN (integers: a large negative number)."""

    _FACTORIES = (torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty, Tensor.new_empty_strided)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in self._FACTORIES and result.numel():
            if result.is_floating_point():
                result.fill_(float("nan"))
            elif result.dtype != torch.bool:
                result.fill_(torch.iinfo(result.dtype).min // 2 or 165)
        return result


class Call:
    """One call of a layer on a problem, its leaves made beforehand so that only the layer's own work is left to do."""

    def __init__(self, problem: Problem):
        case = problem.case
        self.problem = problem
        self.x, state = problem.x.detach(), tuple(s.detach() for s in problem.state)
        for leaf in (self.x, *state):
            leaf.requires_grad_(case.training)
        self.state = replace(problem, state=state).given_state
        states = cells.get(case.cell).states
        self.inputs: dict[str, Tensor] = {"x": self.x}
        self.inputs |= {f"initial {name}": tensor for name, tensor in zip(states, state, strict=False)}
        self.inputs |= problem.weights
        self._leaves = list(self.inputs.values())

    def forward(self, layer: Layer) -> Any:
        return layer(self.x, self.state, self.problem.lengths)

    def timed(self, layer: Layer) -> tuple[Any, Any]:
        """The layer, and in training mode the gradient of every input: nothing else is timed."""
        result = self.forward(layer)
        if not self.problem.loss_weights:
            return result, ()
        output, final = result
        outputs = (output, *final) if isinstance(final, tuple) else (output, final)
        return result, torch.autograd.grad(outputs, self._leaves, self.problem.loss_weights, allow_unused=True)

    def named(self, result: Any, gradients: Any) -> Tensors:
        """What `timed` returned, by name. Raises WrongResult where it does not have the contract's form."""
        cell = cells.get(self.problem.case.cell)
        output, finals = _unpack(result, cell)
        tensors: Tensors = {"output": output, **{f"final {s}": f for s, f in zip(cell.states, finals, strict=True)}}
        return tensors | {f"grad {name}": grad for name, grad in zip(self.inputs, gradients, strict=bool(gradients))}


def run(layer: Layer, problem: Problem) -> Tensors:
    """Calls `layer` and names what comes out: output, final states and, in training mode, the gradient of every input.

    A gradient is None where an output of the wrong shape, or cut from the graph, leaves none. Raises WrongResult where
    the result does not have the contract's form.
    """
    call = Call(problem)
    with torch.set_grad_enabled(problem.case.training):
        result = call.forward(layer)
    output, finals = _unpack(result, cells.get(problem.case.cell))
    gradients: Any = ()
    if problem.case.training:
        gradients = _gradients((output, *finals), problem.loss_weights, list(call.inputs.values()))
    return call.named(result, gradients)


def _unpack(result: Any, cell: cells.Cell) -> tuple[Tensor, tuple[Tensor, ...]]:
    form = "(output, final_state)"
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Tensor):
        raise WrongResult(f"expected the tuple {form}, got {_kind(result)}")
    count = len(cell.states)
    wanted = "a tensor" if count == 1 else f"a tuple of {count} tensors ({', '.join(cell.states)})"
    finals = (result[1],) if isinstance(result[1], Tensor) else result[1]
    right_kind = isinstance(result[1], Tensor) if count == 1 else isinstance(finals, (tuple, list)) and len(finals) == count
    if not right_kind or not all(isinstance(final, Tensor) for final in finals):
        raise WrongResult(f"expected the final state as {wanted}, got {_kind(result[1])}")
    return result[0], tuple(finals)


def _kind(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of {len(value)} ({', '.join(type(v).__name__ for v in value)})"
    return type(value).__name__


def _gradients(outputs: tuple[Tensor, ...], weights: tuple[Tensor, ...], inputs: list[Tensor]) -> Any:
    pairs = [(o, w) for o, w in zip(outputs, weights, strict=True) if o.requires_grad and o.shape == w.shape]
    if not pairs:
        return (None,) * len(inputs)
    given = [w.to(o.dtype) for o, w in pairs]
    return torch.autograd.grad([o for o, _ in pairs], inputs, given, allow_unused=True)


def reference_layer(problem: Problem) -> Layer:
    """The float64 reference in the form of a layer."""
    case = problem.case

    def layer(x: Tensor, state: Any, lengths: Tensor | None) -> Any:
        return cells.reference(case, {name: problem.weights.masked(name) for name in problem.weights}, x, state, lengths)

    return layer


def widen(problem: Problem) -> Problem:
    """The same problem in float64."""
    weights = {name: torch.nn.Parameter(p.detach().double(), p.requires_grad) for name, p in problem.weights.items()}
    return replace(
        problem,
        weights=Weights(weights, problem.weights.masks),
        x=problem.x.double(),
        state=tuple(s.double() for s in problem.state),
        loss_weights=tuple(w.double() for w in problem.loss_weights),
    )


class Expected:
    """What the reference says of a problem, and how far a plain loop is from it."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self._yardsticks: dict[str, list[yardstick.Errors]] = {}

    @cached_property
    def tensors(self) -> dict[str, Array]:
        return _reference(self.problem)

    def valid(self, tensor: str) -> Mask | None:
        """Where the tensor's elements count: not in padding, not at pruned weights. None: everywhere."""
        mask = self.problem.weights.masks.get(tensor.removeprefix("grad "))
        if mask is not None:
            return mask.cpu().numpy()
        if tensor in ("output", "grad x") and self.problem.padding is not None:
            return np.broadcast_to(~self.problem.padding.cpu().numpy()[..., None], self.tensors[tensor].shape)
        return None

    @cached_property
    def _measured(self) -> tuple[Problem, dict[str, Array], float]:
        """What the loop runs on: the problem, its reference, and the scale of its errors."""
        if self.problem.case.dtype != "float64":
            return self.problem, self.tensors, 1.0
        narrow = yardstick.single(self.problem)
        # Twice: the float64 reference itself errs as much as a float64 candidate.
        return narrow, _reference(narrow), 2 * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps

    def spread(self, carry: str, runs: int) -> yardstick.Errors:
        """Errors of the plain loop by tensor and slice: the worst of so many permutations."""
        done = self._yardsticks.setdefault(carry, [])
        for number in range(len(done), runs):
            done.append(self._run_yardstick(carry, number))
        return yardstick.worst(done[:runs])

    def _run_yardstick(self, carry: str, number: int) -> yardstick.Errors:
        problem, reference, scale = self._measured
        finfo, errors = torch.finfo(contents.torch_dtype(problem.case)), {}
        permutation = yardstick.Permutation.draw(problem.case, number)
        permuted = permutation.problem(problem)
        for name, tensor in run(yardstick.loop(carry).build(permuted.case, permuted.weights), permuted).items():
            assert tensor is not None
            values = comparison.to_array(permutation.undo(name, tensor))
            where = comparison.slices(problem.case, name, values.shape)
            found = comparison.errors(values, reference[name], where, self.valid(name), finfo.smallest_normal * finfo.eps)
            errors[name] = {label: Error(e.rms * scale, e.maximum * scale, e.count) for label, e in found.items()}
        return errors

    def compare(self, tensors: Tensors, carry: str) -> list[Comparison]:
        """The verdict on each tensor of the reference; what fails is judged again by the worst of more permutations.

        More runs only raise the limits, so this is the verdict of the most runs at the price of the fewest.
        """
        fewest, most = yardstick.run_counts(self.tensors["output"].size)
        verdicts = self._judge(tensors, carry, list(self.tensors), fewest)
        doubtful = [name for name, one in verdicts.items() if one.status == "failed" and np.isfinite(one.share)]
        if doubtful:
            verdicts |= self._judge(tensors, carry, doubtful, most)
        return list(verdicts.values())

    def _judge(self, tensors: Tensors, carry: str, names: list[str], runs: int) -> dict[str, Comparison]:
        yard, case = self.spread(carry, runs), self.problem.case
        return {
            name: comparison.judge(case, name, tensors.get(name), self.tensors[name], yard[name], self.valid(name))
            for name in names
        }


def _reference(problem: Problem) -> dict[str, Array]:
    wide = widen(problem)
    return {name: comparison.to_array(t) for name, t in run(reference_layer(wide), wide).items() if t is not None}


@lru_cache(maxsize=4)
def expected(case: Case) -> Expected:
    """The expectation for the case's own problem, kept for the next implementation that is judged by it."""
    return Expected(contents.problem(case))


@dataclass
class Candidate:
    """An implementation built for a case, ready to be run on any problem that shares `weights`."""

    name: str
    implementation: Implementation
    case: Case
    layer: Layer
    weights: Weights
    build_ms: float

    @classmethod
    def build(cls, name: str, make: Callable[[], Implementation], case: Case) -> Candidate:
        """In training mode it is built and run on other weights, which then change in place to the case's own."""
        implementation, own = make(), expected(case).problem
        weights = contents.make_weights(case, "decoy") if case.training else own.weights
        start = time.perf_counter()
        layer = implementation.build(case, weights)
        candidate = cls(name, implementation, case, layer, weights, (time.perf_counter() - start) * 1e3)
        if case.training:
            with Poisoned():
                run(layer, replace(own, weights=weights))
            with torch.no_grad():
                for parameter, value in zip(weights.values(), own.weights.values(), strict=True):
                    parameter.copy_(value)
        return candidate

    def verify(self) -> list[Comparison]:
        """Runs on poisoned memory and compares every tensor with the reference."""
        wanted = expected(self.case)
        with Poisoned():
            tensors = run(self.layer, replace(wanted.problem, weights=self.weights))
        return wanted.compare(tensors, self.implementation.carry)


def rerun_command(name: str, case: Case, extra: str = "") -> str:
    """The one command that repeats a failure."""
    return f'pytest --ecornn-verify --ecornn-only {name} --ecornn-case "{case}"{extra}'


def failure_message(name: str, case: Case, comparisons: list[Comparison], extra: str = "") -> str:
    """Every failed tensor, a line each, and how to see it again; empty when none failed."""
    failed = [c.message for c in comparisons if c.status == "failed"]
    if not failed:
        return ""
    return "\n".join(
        [f"{name} is wrong on {case}:", *(f"  {line}" for line in failed), f"again: {rerun_command(name, case, extra)}"]
    )
