"""One call of a layer: its leaves made beforehand, its results named, on poisoned memory where it is to be judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from types import FunctionType
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule

from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Layer, cells
from pytest_ecornn.system.dispatch import DispatchMode

Tensors = dict[str, Tensor | None]


class Contents(Protocol):
    """All that a call is given: of a layer a `Problem`, of a function its arguments."""

    @property
    def tensors(self) -> dict[str, Tensor]: ...
    def map(self, function: Callable[[str, Tensor], Tensor]) -> Self: ...
    def copied(self) -> Self: ...


AnyContents = TypeVar("AnyContents", bound=Contents)


def fill(target: Contents, source: Contents) -> None:
    """Writes other contents of the same shapes into the tensors, through `data`, which torch does not count as a change."""
    for name, tensor in source.tensors.items():
        target.tensors[name].data.copy_(tensor)


class WrongResult(Exception):
    """A candidate broke the contract in a way that leaves nothing to compare."""


class WrongForm(WrongResult):
    """A result that lacks the contract's form, whatever it was to show."""


class PoisonedAllocations(DispatchMode):
    """Within it, memory that torch.empty and its kin return uninitialised holds `value` (integers: a large negative number).

    At the dispatcher, so that a backward pass is reached too.
    """

    def __init__(self, value: float = float("nan")):
        super().__init__()
        self._value = value

    sees_inside_ops = True  # what an op's function allocates is poisoned only where the function runs in the op's place

    _FACTORIES = (
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    )

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: what torch.compile made runs compiled within, or torch would run it as it is, then and in every later call."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrderOperator):
            return func(*map(self._within, args), **{name: self._within(value) for name, value in (kwargs or {}).items()})
        result = func(*args, **(kwargs or {}))
        if func not in self._FACTORIES or not result.numel():
            return result
        result = self._placed(result)
        if result.is_floating_point() or result.is_complex():
            result.fill_(self._value)
        elif result.dtype != torch.bool:
            result.fill_(torch.iinfo(result.dtype).min // 2 or 165)
        return result

    def _within(self, argument: Any) -> Any:
        """A function that a higher-order operator calls, made to run within this mode; whatever else it is given as it is."""
        if not isinstance(argument, FunctionType | GraphModule):
            return argument

        def poisoned(*args: Any, **kwargs: Any) -> Any:
            with self:
                return argument(*args, **kwargs)

        return poisoned

    def _placed(self, made: Tensor) -> Tensor:
        """The memory that is given out in place of what was `made`."""
        return made


@contextmanager
def grad_mode(mode: bool) -> Iterator[None]:
    """Within it torch's grad mode is this. Raises WrongResult where what ran within has left another."""
    with torch.set_grad_enabled(mode):
        yield
        if torch.is_grad_enabled() != mode:
            raise WrongResult(f"grad mode: expected {mode} as before the call, got {not mode}")


class Call:
    """One call of a layer on a problem, its leaves made beforehand so that only the layer's own work is left to do."""

    def __init__(self, problem: Problem):
        case = problem.case
        self.problem = problem
        self.x, state = problem.x.detach(), tuple(s.detach() for s in problem.state)
        for leaf in (self.x, *state):
            leaf.requires_grad_(case.training)
        self.state = replace(problem, state=state).state_argument
        states = cells.get(case.cell).states
        self.inputs: dict[str, Tensor] = {"x": self.x}
        self.inputs |= {f"initial {name}": tensor for name, tensor in zip(states, state, strict=False)}
        self.inputs |= problem.weights
        self._leaves = list(self.inputs.values())

    def forward(self, layer: Layer) -> Any:
        lengths, resets = self.problem.lengths, self.problem.resets
        return layer(self.x, self.state, lengths) if resets is None else layer(self.x, self.state, lengths, resets)

    def forward_backward(self, layer: Layer) -> tuple[Any, Any]:
        """The layer, and in training mode the gradient of every input: nothing else is timed."""
        result = self.forward(layer)
        if not self.problem.output_gradients:
            return result, ()
        output, final = result
        outputs = (output, *final) if isinstance(final, tuple) else (output, final)
        return result, torch.autograd.grad(outputs, self._leaves, self.problem.output_gradients, allow_unused=True)

    def results_by_name(self, result: Any, gradients: Any) -> Tensors:
        """Names the tensors that `forward_backward` returned. Raises WrongForm where they lack the contract's form."""
        cell = cells.get(self.problem.case.cell)
        output, finals = _unpack(result, cell)
        if odd := [type(one).__name__ for one in gradients if one is not None and type(one) is not Tensor]:
            raise WrongForm(f"expected plain tensors as gradients, got {odd[0]}")
        tensors: Tensors = {"output": output, **{f"final {s}": f for s, f in zip(cell.states, finals, strict=True)}}
        return tensors | {f"grad {name}": grad for name, grad in zip(self.inputs, gradients, strict=bool(gradients))}


def tree_map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Applies `function` to each tensor of a result; its tuples and lists become tuples."""
    if isinstance(value, Tensor):
        return function(value)
    return tuple(tree_map_tensors(function, one) for one in value) if isinstance(value, (tuple, list)) else value


def copy_tensors(tensors: Tensors) -> Tensors:
    """Copies the tensors into memory that no layer knows."""
    return {name: None if tensor is None else tensor.clone() for name, tensor in tensors.items()}


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bitwise_different(one: Tensor, other: Tensor) -> Tensor:
    """Mask of elements whose bits differ in two tensors of the same kind; any two NaNs are equal."""
    bits = _BITS[one.element_size()]
    return (one.detach().view(bits) != other.detach().view(bits)) & ~(one.isnan() & other.isnan())


def check_unchanged(name: str, given: Tensor, before: Tensor) -> None:
    """Raises WrongResult, with the first element that differs, where `given` is not as it was before the call."""
    wrong = bitwise_different(given, before)
    if wrong.any():
        index = tuple(int(i) for i in wrong.nonzero()[0])
        was, became = before[index].item(), given[index].item()
        raise WrongResult(f"expected {name} unchanged by the call, but at {list(index)} {was:.6g} became {became:.6g}")


class Copies:
    """Copies of tensors, to find out whether somebody wrote into them."""

    def __init__(self, given: Mapping[str, Tensor]):
        self._given = {name: Tensor.detach(tensor) for name, tensor in given.items()}
        self._copies = {name: tensor.clone() for name, tensor in self._given.items()}

    def check(self) -> None:
        """Raises WrongResult naming what was written into, after putting back what stood there."""
        try:
            for name, copy in self._copies.items():
                check_unchanged(name, self._given[name], copy)
        except WrongResult:
            for name, copy in self._copies.items():
                self._given[name].copy_(copy)
            raise


def timed_run_guarded(layer: Layer, problem: Problem) -> tuple[Tensors, float]:
    """`run` on poisoned memory, and the seconds from the call until its results are there.

    Raises WrongResult where the call wrote into its inputs or weights.
    """
    guard = Copies(problem.tensors)
    with PoisonedAllocations():
        start = perf_counter()
        tensors = run(layer, problem)
        if problem.case.device.startswith("cuda"):
            torch.cuda.synchronize(problem.case.device)
        seconds = perf_counter() - start
    guard.check()
    return tensors, seconds


def run(layer: Layer, problem: Problem) -> Tensors:
    """Calls `layer` and names what comes out: output, final states and, in training mode, the gradient of every input.

    A gradient is None where an output of the wrong shape, or cut from the graph, leaves none. Raises WrongResult where
    the result does not have the contract's form.
    """
    return run_call(layer, Call(problem))


def run_call(layer: Layer, call: Call) -> Tensors:
    """`run`, on leaves that are at hand."""
    problem = call.problem
    with grad_mode(problem.case.training):
        result = call.forward(layer)
    output, finals = _unpack(result, cells.get(problem.case.cell))
    gradients: Any = ()
    if problem.case.training:
        gradients = _gradients((output, *finals), problem.output_gradients, list(call.inputs.values()))
    return call.results_by_name(result, gradients)


def _unpack(result: Any, cell: cells.Cell) -> tuple[Tensor, tuple[Tensor, ...]]:
    form = "(output, final_state)"
    if type(result) is not tuple or len(result) != 2 or type(result[0]) is not Tensor:
        raise WrongForm(f"expected the tuple {form} of plain tensors, got {_kind(result)}")
    count = len(cell.states)
    wanted = "a tensor" if count == 1 else f"a tuple of {count} tensors ({', '.join(cell.states)})"
    finals = (result[1],) if count == 1 else result[1]
    if type(finals) not in (tuple, list) or len(finals) != count or not all(type(final) is Tensor for final in finals):
        raise WrongForm(f"expected the final state as {wanted}, got {_kind(result[1])}")
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
