"""Arguments of a function under test, named by its parameters, and one call on them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_map_with_path

from pytest_ecornn.cases.contents import generator
from pytest_ecornn.verification.calls import Tensors, WrongForm, WrongResult, grad_mode

Function = Callable[..., Any]
Incoming = Callable[[str, Tensor], Tensor | None]  # an output's name and the output -> its incoming gradient; None: unused


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call. names: of the function's parameters, as far as they are known."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, made: object, function: Function) -> Arguments:
        """What `make_inputs` returned: a tuple or list of arguments, a dict by keyword, or the only argument.

        Raises TypeError where there is no tensor among them.
        """
        args, kwargs = (), made if isinstance(made, dict) else {}
        if not isinstance(made, dict):
            args = tuple(made) if isinstance(made, tuple | list) else (made,)
        arguments = cls(args, kwargs, _parameters(function))
        if any(isinstance(value, np.ndarray) for value in (*args, *kwargs.values())):
            raise TypeError("expected make_inputs to return tensors, got an array of NumPy: torch.from_numpy makes one of it")
        if not arguments.tensors:
            raise TypeError(f"expected make_inputs to return tensors, as a tuple or a dict of arguments; got {made!r:.100}")
        return arguments

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor among the arguments, by name."""
        tensors: dict[str, Tensor] = {}
        self.map(lambda name, tensor: tensors.setdefault(name, tensor))
        return tensors

    @property
    def device(self) -> torch.device:
        return next((t.device for t in self.tensors.values() if t.is_cuda), torch.device("cpu"))

    @property
    def has_gradients(self) -> bool:
        return any(tensor.requires_grad for tensor in self.tensors.values())

    def map(self, function: Callable[[str, Tensor], Tensor]) -> Arguments:
        """The same arguments with `function(name, tensor)` in place of each tensor, whose gradient stays asked for."""

        def mapped(name: str, path: Any, value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            result = function(name + keystr(path), value)
            return result.detach().requires_grad_() if value.requires_grad else result

        names = [*self.names, *(f"input {k}" for k in range(len(self.names), len(self.args)))]
        named = [*zip(names, self.args, strict=False), *self.kwargs.items()]
        values = [tree_map_with_path(partial(mapped, name), value) for name, value in named]
        count = len(self.args)
        return Arguments(tuple(values[:count]), dict(zip(self.kwargs, values[count:], strict=True)), self.names)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Shapes and dtypes of the tensors, and everything else as text: what two calls must share."""
        tensors = {name: (tuple(t.shape), t.dtype, t.requires_grad) for name, t in self.tensors.items()}
        rest = self.map(lambda _, tensor: tensor.new_empty(0))
        return tensors, repr(rest.args), repr(rest.kwargs)

    def copied(self) -> Arguments:
        """Copies in memory of their own, with the strides of the originals."""
        return self.map(lambda _, tensor: tensor.detach().clone(memory_format=torch.preserve_format))


def function_name(function: Function) -> str:
    """The name that reports give to a function."""
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")


def _parameters(function: Function) -> tuple[str, ...]:
    """Names of the positional parameters; none of a function that does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD))


def random_gradients(seed: int) -> Incoming:
    """Incoming gradients by an output's name and shape: random numbers in its dtype."""

    def incoming(name: str, output: Tensor) -> Tensor:
        values = 2 * torch.randn(output.shape, generator=generator(seed, f"incoming {name}"), dtype=torch.float64)
        return values.to(output.device, output.dtype)

    return incoming


class FunctionCall:
    """A call whose leaves were made beforehand, so that only the function's own work is left to do."""

    def __init__(self, arguments: Arguments, incoming: Incoming):
        self.arguments, self._incoming = arguments, incoming
        self._leaves = {name: tensor for name, tensor in arguments.tensors.items() if tensor.requires_grad}

    def forward_backward(self, function: Function) -> tuple[Any, Any]:
        """The result, and the gradients of all arguments that require one: nothing else is timed."""
        result = function(*self.arguments.args, **self.arguments.kwargs)
        if not self._leaves:
            return result, ()
        pairs = [(output, self._incoming(name, output)) for name, output in outputs(result).items() if output.requires_grad]
        used = [(output, gradient) for output, gradient in pairs if gradient is not None]
        if not used:
            return result, (None,) * len(self._leaves)
        results, gradients = zip(*used, strict=True)
        return result, torch.autograd.grad(results, [*self._leaves.values()], gradients, allow_unused=True)

    def results_by_name(self, result: Any, gradients: Any) -> Tensors:
        """Names what `forward_backward` returned, without its history: each output, and `grad NAME` of each leaf."""
        tensors: Tensors = {name: output.detach() for name, output in outputs(result).items()}
        return tensors | {f"grad {name}": gradient for name, gradient in zip(self._leaves, gradients, strict=True)}

    def run(self, function: Function) -> Tensors:
        """Names what comes out of a call. Raises WrongResult where it leaves an argument elsewhere, or another grad mode."""
        places = self._places()
        with grad_mode(self.arguments.has_gradients):
            results = self.forward_backward(function)
        if moved := [name for name, place in self._places().items() if place != places[name]]:
            change = "it has other memory, strides or dtype, or another .grad"
            raise WrongResult(f"expected {moved[0]} unchanged by the call, but {change}")
        return self.results_by_name(*results)

    def _places(self) -> dict[str, tuple[Any, ...]]:
        tensors = self.arguments.tensors.items()
        return {name: (one.data_ptr(), one.shape, one.stride(), one.dtype, one.grad is None) for name, one in tensors}


def run(function: Function, arguments: Arguments, incoming: Incoming) -> Tensors:
    """Calls the function on leaves of its own, and names what comes out, as `FunctionCall.run`."""
    return FunctionCall(arguments.map(lambda _, tensor: tensor.detach()), incoming).run(function)


def outputs(result: Any) -> dict[str, Tensor]:
    """The tensors of a result by name: "output", "output K" of a tuple, "output KEY" of a dict.

    Arrays of NumPy and of what knows DLPack count as tensors. Raises WrongForm for anything else.
    """
    if isinstance(result, dict):
        return {f"output {key}": _tensor(value) for key, value in result.items()}
    if isinstance(result, tuple | list):
        return {f"output {number}": _tensor(value) for number, value in enumerate(result)}
    return {"output": _tensor(result)}


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return torch.from_numpy(np.atleast_1d(value)).reshape(value.shape)
    if hasattr(value, "__dlpack__"):
        return torch.utils.dlpack.from_dlpack(value)
    raise WrongForm(f"expected a tensor, or a tuple or dict of them, got {type(value).__name__}")


def made_once(incoming: Incoming) -> Incoming:
    """The same gradients, each made when an output of its name and dtype first comes: a capture allows no copies."""
    made: dict[tuple[str, torch.dtype], Tensor | None] = {}

    def kept(name: str, output: Tensor) -> Tensor | None:
        if (name, output.dtype) not in made:
            made[name, output.dtype] = incoming(name, output)
        return made[name, output.dtype]

    return kept


def drawn(make_inputs: Any, function: Function, seeds: Sequence[int]) -> Iterator[Arguments]:
    """Arguments by a function of each seed, or so many examples of a Hypothesis strategy."""
    if hasattr(make_inputs, "example"):
        yield from (Arguments.of(made, function) for made in _examples(make_inputs, len(seeds), seeds[0]))
    else:
        yield from (Arguments.of(make_inputs(seed), function) for seed in seeds)


def _examples(strategy: Any, count: int, seed: int) -> list[Any]:
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    examples: list[Any] = []

    @seeded(seed)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(strategy)
    def collect(made: Any) -> None:
        examples.append(made)

    collect()
    return examples
