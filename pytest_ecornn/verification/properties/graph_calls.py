"""Calls whose backward passes are made apart from them: later, twice, for some gradients, from some results."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Layer
from pytest_ecornn.system import faults
from pytest_ecornn.verification.calls import Call, Tensors, WrongResult
from pytest_ecornn.verification.properties.subject import NotApplicable, PropertyContext

_LONGEST_SECONDS, _FEWEST_VARIANTS = 3.0, 2
T = TypeVar("T")


def rotated(every: Sequence[T], by: int) -> list[T]:
    """Returns the elements in turn from number `by` on; counting goes on from the first after the last."""
    first = by % max(1, len(every))
    return [*every[first:], *every[:first]]


def variants(subject: PropertyContext, every: Sequence[T]) -> Iterator[T]:
    """All of them, from one that the case's seed says; of a slow layer as many as a few seconds allow, two at least."""
    start = time.monotonic()
    for number, one in enumerate(rotated(every, subject.case.seed)):
        if number >= _FEWEST_VARIANTS and time.monotonic() - start > _LONGEST_SECONDS:
            return
        yield one


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
            found = torch.autograd.grad(outputs, [*leaves.values()], seeds, retain_graph=is_retained, allow_unused=True)
        return {f"grad {name}": gradient for name, gradient in zip(leaves, found, strict=True)}

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
        raise WrongResult(labelled(str(wrong), label)) from wrong


def check_allclose(subject: PropertyContext, wanted: Tensors, got: Tensors, problem: Problem | None = None) -> str:
    """Describes what differs by more than rounding, as `allclose`. -0.0 equals 0.0, and a gradient of None equals zeros."""
    names = [name for name in got if name in wanted]
    plain = {name: _plain(got[name], wanted[name]) for name in names}
    whole = {name: _plain(wanted[name], None) for name in names}
    whole.setdefault("output", None)
    plain.setdefault("output", None)
    return subject.allclose(whole, plain, problem)


def _plain(tensor: Tensor | None, like: Tensor | None) -> Tensor | None:
    if tensor is None:
        return torch.zeros_like(like) if like is not None and not like.any() else None
    return tensor + 0.0


def or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    """The gradient; zeros like its leaf where autograd has none."""
    return torch.zeros_like(like) if gradient is None else gradient


def labelled(message: str, label: str) -> str:
    return message and f"{label}: {message}"
