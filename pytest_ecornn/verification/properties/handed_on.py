"""Property of states that the caller hands on from call to call: in the graph, and in memory that the caller changes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pytest_ecornn.contract import cells
from pytest_ecornn.verification.calls import Call, Tensors, WrongResult, copy_tensors
from pytest_ecornn.verification.properties.graph_calls import (
    GraphCall,
    check_allclose,
    labelled,
    or_zeros,
    raised_as_wrong,
)
from pytest_ecornn.verification.properties.subject import NotApplicable, PropertyContext


def state_handed_on(subject: PropertyContext) -> str:
    """Halved in place before it is handed on; in the graph of both calls; halved in place between forward and backward."""
    if not subject.problem.state:
        raise NotApplicable("no initial state")
    if (message := _halved_before(subject)) or not subject.case.training:
        return message
    return _in_one_graph(subject) or _halved_after(subject)


def _names(subject: PropertyContext, role: str) -> list[str]:
    return [f"{role} {name}" for name in cells.get(subject.case.cell).states]


def _halved_before(subject: PropertyContext) -> str:
    """The memory that the layer returned, with other values, against the same values in other memory."""
    first = subject.forward(subject.problem, has_graph=False)
    finals = tuple(state.mul_(0.5) for name in _names(subject, "final") if (state := first[name]) is not None)
    apart = replace(subject.other_problem, state=tuple(state.clone() for state in finals))
    got = copy_tensors(subject.forward(replace(apart, state=finals), has_graph=False))
    wanted = subject.forward(apart, has_graph=False)
    message = check_allclose(subject, wanted, got, apart)
    return labelled(message, "a final state halved in place, then handed on as initial state")


def _in_one_graph(subject: PropertyContext) -> str:
    """Two calls, the second on the first's final state, against each by itself. The first's initial state is no leaf.

    It is gone before the backward pass, and its memory given to NaN.
    """
    layer, calls = subject.layer, (Call(subject.problem), Call(subject.other_problem))
    leaves = [calls[0].inputs[name] for name in _names(subject, "initial")]
    first = _made(subject, calls[0], tuple(leaf.clone() for leaf in leaves))
    finals = tuple(first.results[name] for name in _names(subject, "final"))
    later = _made(subject, calls[1], finals)
    taken = [torch.full_like(leaf, float("nan")) for leaf in leaves for _ in range(2)]
    weights = [subject.problem.output_gradients[0], *subject.other_problem.output_gradients]
    with raised_as_wrong(subject.case.device):
        inputs, outputs = [calls[0].x, *leaves, calls[1].x], [first.results["output"], *later.results.values()]
        gradients = torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
    del taken
    own = replace(subject.other_problem, state=tuple(final.detach().clone() for final in finals))
    of_later = GraphCall(layer, Call(own)).gradients()
    back = [or_zeros(of_later[f"grad {name}"], leaf) for name, leaf in zip(_names(subject, "initial"), leaves, strict=True)]
    whole = replace(subject.problem, output_gradients=(weights[0], *back))
    wanted = GraphCall(layer, Call(whole)).gradients()
    got: Tensors = dict(zip(["grad x", *(f"grad {name}" for name in _names(subject, "initial"))], gradients, strict=False))
    message = check_allclose(subject, wanted, got, whole) or check_allclose(subject, of_later, {"grad x": gradients[-1]}, own)
    return labelled(message, "a final state handed on in the graph, the first initial state no leaf")


def _made(subject: PropertyContext, call: Call, states: tuple[Tensor, ...]) -> GraphCall:
    """The call on these states, which it holds no longer than its forward pass."""
    call.state = states if len(states) > 1 else states[0]
    made = GraphCall(subject.layer, call)
    call.state = None
    return made


def _halved_after(subject: PropertyContext) -> str:
    """A layer may refuse its backward pass then, as torch does; it may not return other gradients."""
    for role in ("initial", "final"):
        made = GraphCall(subject.layer, Call(subject.problem.copied()))
        for name in _names(subject, role):
            (made.call.inputs if role == "initial" else made.results)[name].detach().mul_(0.5)
        try:
            got = made.gradients()
        except WrongResult:
            continue
        if message := check_allclose(subject, subject.whole, got):
            return labelled(message, f"the {role} state halved in place by the caller between forward and backward")
    return ""
