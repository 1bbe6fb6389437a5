"""The subject of a property: calls on contents of one kind. Of a layer: an implementation on one case, built when needed.

Backward passes of a layer's calls are made apart from them: later, twice, for some gradients, from some results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Case, Declared, Implementation, Layer, Unsupported, Weights
from pytest_ecornn.system import faults
from pytest_ecornn.verification.agreement import ResultComparator, bitwise_equal, loosest
from pytest_ecornn.verification.calls import Call, Copies, Tensors, WrongResult, copy_tensors, run_call
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard, everything, random_states_restored
from pytest_ecornn.verification.outcomes import skips_as_unsupported

_LONGEST_SECONDS, _FEWEST_VARIANTS = 3.0, 2
T = TypeVar("T")


class NotApplicable(Exception):
    """The case has not got what the property is about; one line says what."""


class CallSubject(Protocol):
    """Calls of a layer on problems, or of a function on arguments. kept: guard of the build and the first call.

    num_repeats: how often the property `repeats` calls. written_into: by these calls. whole: a copy of the first result.
    """

    num_repeats: int
    problem: Any
    kept: GlobalStateGuard
    layer: Any
    written_into: str
    device: str
    is_training: bool

    @property
    def whole(self) -> Tensors: ...
    @property
    def other_problem(self) -> Any: ...
    def other_contents(self, name: str) -> Any: ...
    def forget_layers(self) -> None: ...
    def call(self, problem: Any) -> Any: ...
    def run(self, problem: Any) -> Tensors: ...
    def run_call(self, call: Any) -> Tensors: ...
    def run_anew(self, problem: Any) -> Tensors: ...
    def repeated(self, wanted: Tensors, got: Tensors, problem: Any = None) -> str: ...
    def allclose(self, wanted: Tensors, got: Tensors, problem: Any = None) -> str: ...


@dataclass
class PropertyContext:
    """num_repeats: how often the property `repeats` calls the layer. last_built: the case of the layer built last."""

    make: Callable[[], Implementation]
    case: Case
    num_repeats: int = 20

    def __post_init__(self) -> None:
        self.implementation = self.make()
        self.device, self.is_training = self.case.device, self.case.training
        self._others: list[Declared] = []
        self.last_built = self.case
        self._agreement: ResultComparator | None = None
        with GlobalStateGuard(everything()) as self.kept:
            self.problem = contents.problem(self.case)
            before = Copies(self.problem.tensors)
            with random_states_restored():
                self.layer = self.implementation.build(self.case, self.problem.weights)
            built = Copies(self.problem.tensors)  # which may have moved the weights
            self.whole = copy_tensors(self.run(self.problem))
        self.written_into = changed(before) or changed(built)

    @property
    def declared(self) -> Declared:
        """The loosest of what its layers declare: one that chooses may choose otherwise for another case."""
        return loosest([self.implementation.declared, *self._others])

    @property
    def agreement(self) -> ResultComparator:
        if self._agreement is None or self._agreement.declared != self.declared:
            self._agreement = ResultComparator(self.problem, self.declared)
        return self._agreement

    @cached_property
    def other_problem(self) -> Problem:
        """Other contents for the same weights, lengths in another order."""
        return self.other_contents("other")

    def forget_layers(self) -> None:
        """Forgets what other layers than its own have declared: each property judges by those that it builds."""
        self._others.clear()
        self.last_built = self.case

    def other_contents(self, name: str) -> Problem:
        """Draws other contents by `name` for the same weights, lengths in another order, as `other_problem` does."""
        lengths = None if self.problem.lengths is None else contents.placed_tensor(self.problem.lengths, lambda t: t.roll(1))
        return replace(contents.problem(self.case, name, self.problem.weights), lengths=lengths)

    def run(self, problem: Problem, layer: Layer | None = None) -> Tensors:
        """Detached results of the built layer, or of another."""
        return self.run_call(Call(problem), layer)

    def run_call(self, call: Call, layer: Layer | None = None) -> Tensors:
        return {name: None if t is None else t.detach() for name, t in run_call(layer or self.layer, call).items()}

    def forward(self, problem: Problem, layer: Layer | None = None, has_graph: bool | None = None) -> Tensors:
        """The results without gradients, computed as the mode has it, or with a graph or under no_grad."""
        call = Call(problem)
        with torch.set_grad_enabled(self.case.training if has_graph is None else has_graph):
            tensors = call.results_by_name(call.forward(layer or self.layer), ())
        return {name: None if t is None else t.detach() for name, t in tensors.items()}

    def built(self, case: Case, weights: Weights) -> Layer:
        """The layer of another case. Raises NotApplicable where the implementation does not run it."""
        try:
            with skips_as_unsupported(), random_states_restored():
                made = self.make()
                if reason := made.refusal(case):
                    raise NotApplicable(reason)
                self.last_built = case
                layer = made.build(case, weights)
        except Unsupported as refusal:
            raise NotApplicable(str(refusal)) from refusal
        self._others.append(made.declared)
        return layer

    def call(self, problem: Problem) -> Call:
        return Call(problem)

    def run_anew(self, problem: Problem) -> Tensors:
        """Detached results of a layer that is built on the problem's weights."""
        return self.run(problem, self.built(self.case, problem.weights))

    def repeated(self, wanted: Tensors, got: Tensors, problem: Problem | None = None) -> str:
        """Describes how a result fails to repeat another of the problem, its own if none is given; empty if it repeats it.

        Any bit counts where the implementation is deterministic.
        """
        return bitwise_equal(wanted, got) if self.implementation.deterministic else self.allclose(wanted, got, problem)

    def allclose(self, wanted: Tensors, got: Tensors, problem: Problem | None = None) -> str:
        """Describes what differs by more than rounding between results of the problem, its own if none is given."""
        agreement = self.agreement if problem is None or problem is self.problem else ResultComparator(problem, self.declared)
        return agreement.allclose(wanted, got)


def changed(guard: Copies) -> str:
    """Restores guarded tensors and describes the first that was written into; empty if none was."""
    try:
        guard.check()
    except WrongResult as wrong:
        return str(wrong)
    return ""


def rotated(every: Sequence[T], by: int) -> list[T]:
    """Returns the elements in turn from number `by` on; counting goes on from the first after the last."""
    first = by % max(1, len(every))
    return [*every[first:], *every[:first]]


def variants(subject: PropertyContext, every: Sequence[T]) -> Iterator[T]:
    """All of them, from one that the case's seed says; of a slow layer as many as a few seconds allow, two at least."""
    start = time.monotonic()
    for number, variant in enumerate(rotated(every, subject.case.seed)):
        if number >= _FEWEST_VARIANTS and time.monotonic() - start > _LONGEST_SECONDS:
            return
        yield variant


def needs_training(subject: PropertyContext) -> None:
    """Raises NotApplicable where the case has no gradients."""
    if not subject.problem.output_gradients:
        raise NotApplicable("no gradients in inference")


class GraphCall:
    """A forward pass that was made, with the graph that it left.

    Raises WrongResult where the layer raises, then or in a backward pass.
    """

    def __init__(self, layer: Layer, call: Call):
        self.call = call
        with raised_as_wrong(call.problem.case.device), torch.enable_grad():
            self._result = call.forward(layer)
        self.results: dict[str, Tensor] = {
            name: t for name, t in call.results_by_name(self._result, ()).items() if t is not None
        }

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The inputs that require a gradient, by name."""
        return {name: leaf for name, leaf in self.call.inputs.items() if leaf.requires_grad}

    def gradients(self, given: Sequence[Tensor | None] = (), asked: str = "", is_retained: bool = False) -> Tensors:
        """Gradients by name: of all leaves, or of the one that is asked for; None where no result has a graph.

        given: the results' own, None where a result is not used; the problem's loss weights unless they are said.
        """
        leaves = {asked: self.leaves[asked]} if asked else self.leaves
        outputs, seeds = self._used(given)
        if not outputs or not leaves:
            return {f"grad {name}": None for name in leaves}
        with raised_as_wrong(self.call.problem.case.device):
            gradients = torch.autograd.grad(outputs, [*leaves.values()], seeds, retain_graph=is_retained, allow_unused=True)
        return {f"grad {name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}

    def accumulate(self) -> None:
        """Adds the gradient of each leaf to its `.grad`."""
        outputs, seeds = self._used(())
        with raised_as_wrong(self.call.problem.case.device):
            torch.autograd.backward(outputs, seeds)

    def detached(self) -> Tensors:
        return {name: result.detach() for name, result in self.results.items()}

    def _used(self, given: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
        """The results that have a graph and are used, each with its incoming gradient."""
        weights = given or self.call.problem.output_gradients
        pairs = [
            (result, weight)
            for result, weight in zip(self.results.values(), weights, strict=True)
            if weight is not None and result.requires_grad and result.shape == weight.shape
        ]
        return [result for result, _ in pairs], [weight for _, weight in pairs]


@contextmanager
def raised_as_wrong(device: str) -> Iterator[None]:
    """Within it what a layer raises is a WrongResult, unless the process is spoilt by it."""
    try:
        yield
    except WrongResult:
        raise
    except Exception as error:
        if faults.unrecoverable_reason(error, device):
            raise
        text = " ".join(str(error).split())
        raise WrongResult(f"expected a result, got {type(error).__name__}: {text}") from error


@contextmanager
def wrong_labelled(label: str) -> Iterator[None]:
    """Within it a WrongResult says by a label what was done."""
    try:
        yield
    except WrongResult as wrong:
        raise WrongResult(f"{label}: {wrong}") from wrong


def reject(message: str, label: str = "") -> None:
    """Raises WrongResult that says what is wrong, and by a label what was done; does nothing where the message is empty."""
    if message:
        raise WrongResult(f"{label}: {message}" if label else message)


def check_allclose(
    subject: PropertyContext, wanted: Tensors, got: Tensors, label: str = "", problem: Problem | None = None
) -> None:
    """Rejects what differs by more than rounding, as `allclose`. -0.0 equals 0.0, and a gradient of None equals zeros."""
    names = [name for name in got if name in wanted]
    plain = {name: _plain(got[name], wanted[name]) for name in names}
    whole = {name: _plain(wanted[name], None) for name in names}
    whole.setdefault("output", None)
    plain.setdefault("output", None)
    reject(subject.allclose(whole, plain, problem), label)


def _plain(tensor: Tensor | None, like: Tensor | None) -> Tensor | None:
    if tensor is None:
        return torch.zeros_like(like) if like is not None and not like.any() else None
    return tensor + 0.0


def or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    """The gradient; zeros like its leaf where autograd has none."""
    return torch.zeros_like(like) if gradient is None else gradient
