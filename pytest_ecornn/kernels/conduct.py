"""Properties of a function that need no tolerance of their own: what its calls leave alone, and on which memory they are right.

Most are those of layers, on arguments in place of problems. Results are judged by the reference of their arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial

from torch import Tensor

from pytest_ecornn.cases.memory_layout import GRADIENT_LAYOUTS, behind, spaced, with_first
from pytest_ecornn.kernels.arguments import Arguments, Function, FunctionCall, Incoming, made_once
from pytest_ecornn.kernels.reference import FunctionReference, failure
from pytest_ecornn.system.graphs import NotCaptured
from pytest_ecornn.verification.agreement import bitwise_equal
from pytest_ecornn.verification.calls import PoisonedAllocations, Tensors, copy_tensors
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard
from pytest_ecornn.verification.properties import properties
from pytest_ecornn.verification.properties.conduct import graph_capturable
from pytest_ecornn.verification.properties.properties import Property
from pytest_ecornn.verification.properties.subject import NotApplicable, raised_as_wrong, reject

_CALLS = 4  # of each of two threads
_offset: Callable[[Tensor], Tensor] = partial(behind, count=3)  # at an address that is aligned to an element alone


class FunctionContext:
    """A function, with arguments and others of the same shapes.

    expected: the reference of the arguments. expect: makes that of others, and of other gradients. kept: guard of the first
    call ever.
    """

    num_repeats, written_into = 11, ""

    def __init__(
        self,
        function: Function,
        expected: FunctionReference,
        others: Arguments,
        expect: Callable[..., FunctionReference],
        kept: GlobalStateGuard,
        is_deterministic: bool = True,
    ):
        self.layer, self.other_problem, self.expect, self.kept = function, others, expect, kept
        self.problem, self.incoming, self._is_deterministic = expected.arguments, expected.incoming, is_deterministic
        self.device, self.is_training = str(self.problem.device), self.problem.has_gradients
        self._references = {id(self.problem): expected}

    @cached_property
    def whole(self) -> Tensors:
        return copy_tensors(self.run(self.problem))

    def other_contents(self, name: str) -> Arguments:
        return self.other_problem

    def forget_layers(self) -> None:
        """Does nothing: a function is not built."""

    def call(self, problem: Arguments) -> FunctionCall:
        return FunctionCall(problem.map(lambda _, tensor: tensor.detach()), made_once(self.incoming))

    def run(self, problem: Arguments) -> Tensors:
        """Calls the function on a copy."""
        return self.run_anew(problem.copied())

    def run_anew(self, problem: Arguments) -> Tensors:
        return self.run_call(self.call(problem))

    def run_call(self, call: FunctionCall) -> Tensors:
        with raised_as_wrong(self.device):
            return call.run(self.layer)

    def repeated(self, wanted: Tensors, got: Tensors, problem: Arguments | None = None) -> str:
        """Describes a tensor that has other bits, or is wrong."""
        return (self._is_deterministic and bitwise_equal(wanted, got)) or self.allclose(wanted, got, problem)

    def allclose(self, wanted: Tensors, got: Tensors, problem: Arguments | None = None) -> str:
        """Describes the tensors that are wrong for the arguments, `problem` if none are given."""
        arguments = problem or self.problem
        if id(arguments) not in self._references:
            self._references[id(arguments)] = self.expect(arguments, incoming=self.incoming)
        return failure(self._references[id(arguments)].compare(got))

    def judged_with(self, incoming: Incoming) -> str:
        """Describes what is wrong with the results for other incoming gradients; empty where nothing is."""
        got = self.run_call(FunctionCall(self.problem.copied(), incoming))
        return failure(self.expect(self.problem, incoming=incoming).compare(got))


def written(subject: FunctionContext) -> None:
    """Memory of torch.empty holds numbers that a maximum or a comparison does not swallow."""
    for poison in (1e3, 0.0):
        with PoisonedAllocations(poison):
            tensors = subject.run(subject.problem)
        reject(subject.allclose({}, tensors), f"{poison:g} in memory of torch.empty")


def _laid_out(subject: FunctionContext, layout: Callable[[Tensor], Tensor]) -> None:
    arguments = subject.problem.map(lambda _, tensor: layout(tensor) if tensor.numel() else tensor.detach())
    reject(subject.allclose({}, subject.run_anew(arguments)))


def incoming_layouts(subject: FunctionContext) -> None:
    """Gradients that lie otherwise in memory, and of sum(), which all are one element."""
    if not subject.is_training:
        raise NotApplicable("no argument requires a gradient")
    for label, layout in {**GRADIENT_LAYOUTS, "offset": _offset}.items():
        reject(subject.judged_with(partial(_laid_out_gradient, subject.incoming, layout)), f"incoming gradients {label}")


def _laid_out_gradient(own: Incoming, layout: Callable[[Tensor], Tensor], name: str, output: Tensor) -> Tensor | None:
    gradient = own(name, output)
    return None if gradient is None else layout(gradient)


def unused_outputs(subject: FunctionContext) -> None:
    """Each output alone has an incoming gradient."""
    names = [name for name in subject.whole if not name.startswith("grad ")]
    if len(names) < 2 or not subject.is_training:
        raise NotApplicable("one output, or no argument that requires a gradient")
    for used in names:
        reject(subject.judged_with(partial(_only, used, subject.incoming)), f"only {used} used")


def _only(used: str, own: Incoming, name: str, output: Tensor) -> Tensor | None:
    return own(name, output) if name == used else None


def calls_at_once(subject: FunctionContext) -> None:
    """Two threads call on contents of their own."""
    both = (subject.problem, subject.other_problem)
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda problem: [subject.run(problem) for _ in range(_CALLS)][-1], both))
    reject(next(filter(None, map(subject.allclose, results, results, both)), ""))


def capture(subject: FunctionContext) -> None:
    """A function that cannot be captured is wrong, as a layer is not."""
    try:
        graph_capturable(subject)
    except NotCaptured as reason:
        reject(str(reason))


PROPERTIES = (
    *map(properties.by_name, ("globals_unchanged", "inputs_unchanged", "repeats", "stateless", "fresh_results")),
    replace(properties.by_name("written"), check=written),
    properties.by_name("guard_bands"),
    Property("strided", "arguments may have gaps between their elements", partial(_laid_out, layout=spaced)),
    Property("offset", "arguments may begin anywhere in memory", partial(_laid_out, layout=_offset)),
    Property("transposed", "arguments may be transposed views", partial(_laid_out, layout=partial(with_first, dimension=1))),
    replace(properties.by_name("incoming_layouts"), check=incoming_layouts),
    Property("unused_outputs", "an output that is not used sends nothing back", unused_outputs),
    Property("calls_at_once", "two threads may call at the same time", calls_at_once),
    properties.by_name("current_stream"),
    replace(properties.by_name("capture"), check=capture),
)
