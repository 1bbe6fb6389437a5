"""Property: which of x, the initial states and the weights require gradients is the caller's choice, call by call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pytest_ecornn.contract import cells
from pytest_ecornn.verification.calls import Call, Tensors
from pytest_ecornn.verification.properties.graph_calls import (
    GraphCall,
    check_allclose,
    labelled,
    needs_training,
    rotated,
    variants,
)
from pytest_ecornn.verification.properties.subject import PropertyContext

Names = tuple[str, ...]


def gradients_required(subject: PropertyContext) -> str:
    """Each choice against the gradients of all; then one gradient asked for alone, and a call without a graph."""
    needs_training(subject)
    for frozen in variants(subject, _frozen(subject)):
        with _required(subject, frozen) as call:
            made = GraphCall(subject.layer, call)
            has_graph = [name for name, result in made.results.items() if result.requires_grad]
            if has_graph and not made.leaves:
                return f"expected {has_graph[0]} without a graph, as nothing requires a gradient, got one"
            got = made.detached() | made.gradients()
        if message := check_allclose(subject, subject.whole, got):
            return labelled(message, f"no gradient required of {', '.join(frozen)}")
    return _one_asked(subject) or _no_graph(subject)


def _frozen(subject: PropertyContext) -> list[Names]:
    """Choices of inputs that require no gradient.

    These are each input alone, of the weights one of a kind; groups; all; all but any one.
    """
    inputs = tuple(Call(subject.problem).inputs)
    weights = tuple(name for name in inputs if name in subject.problem.weights)
    data = inputs[: len(inputs) - len(weights)]
    one_of_a_kind = {name.partition("_l")[0]: name for name in rotated(weights, subject.case.seed)}
    own_tensors = [*data, *one_of_a_kind.values()]
    groups = [data, data[1:], weights, inputs]
    every = (
        [(name,) for name in own_tensors] + groups + [tuple(name for name in inputs if name != only) for only in own_tensors]
    )
    return [*dict.fromkeys(names for names in every if names)]


@contextmanager
def _required(subject: PropertyContext, frozen: Names) -> Iterator[Call]:
    """A call of which these inputs require no gradient; the weights are put back afterwards."""
    call = Call(subject.problem)
    weights = {name: weight.requires_grad for name, weight in subject.problem.weights.items()}
    try:
        for name in frozen:
            call.inputs[name].requires_grad_(False)
        yield call
    finally:
        for name, was in weights.items():
            subject.problem.weights[name].requires_grad_(was)


def _one_asked(subject: PropertyContext) -> str:
    """All require gradients, and autograd.grad is asked for one."""
    call = Call(subject.problem)
    leaves = [name for name, leaf in call.inputs.items() if leaf.requires_grad]
    asked = leaves[subject.case.seed % len(leaves)]
    got = GraphCall(subject.layer, call).gradients(asked=asked)
    return labelled(check_allclose(subject, subject.whole, got), f"only the gradient of {asked} asked for")


def _no_graph(subject: PropertyContext) -> str:
    """The layer of a training program, asked to predict."""
    with torch.no_grad():
        call = Call(subject.problem)
        got: Tensors = call.results_by_name(call.forward(subject.layer), ())
    names = ["output", *(f"final {name}" for name in cells.get(subject.case.cell).states)]
    return labelled(check_allclose(subject, {name: subject.whole[name] for name in names}, got), "under torch.no_grad()")
