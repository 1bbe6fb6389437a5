"""The subject of a property: calls on contents of one kind. Of a layer: an implementation on one case, built when needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Case, Declared, Implementation, Layer, Unsupported, Weights
from pytest_ecornn.verification.agreement import ResultComparator, bitwise_equal, loosest
from pytest_ecornn.verification.calls import Call, Copies, Tensors, WrongResult, copy_tensors, run_call
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard, everything, random_states_restored
from pytest_ecornn.verification.outcomes import skips_as_unsupported


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
