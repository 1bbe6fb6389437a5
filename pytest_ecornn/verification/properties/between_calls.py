"""Properties of what a program does between a layer's calls: change weights, evaluate, hand states on, call another layer.

A weight that changes by itself is used, in place or as other memory. Calls without gradients may come before, within and
between training steps, also under inference_mode. A state is handed on in the graph, and in memory that the caller changes. Two
layers of one case, alive at once, each compute with the weights that they were built on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import combinations

import torch
from torch import Tensor, nn

from pytest_ecornn.cases import contents, memory_layout
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Layer, Weights, cells
from pytest_ecornn.verification.calls import Call, Tensors, WrongResult, copy_tensors
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.outcomes import WrongCase
from pytest_ecornn.verification.properties.subject import (
    GraphCall,
    NotApplicable,
    PropertyContext,
    check_allclose,
    needs_training,
    or_zeros,
    raised_as_wrong,
    reject,
    rotated,
    variants,
    wrong_labelled,
)
from pytest_ecornn.verification.verification import ReferenceResult

_BEFORE = 128  # elements of a flat buffer, before the part that becomes a weight
_MOST = 4  # weights of a case that are changed, each seed's from another one on


def each_weight_seen(subject: PropertyContext) -> None:
    """After each change, against a layer that is built on the weights as they are then. Values change places where they can.

    A sum over them stays as it was, and so does what is told by it.
    """
    needs_training(subject)
    weights = contents.make_weights(subject.case)
    layer = subject.built(subject.case, weights)
    changing = replace(subject.problem, weights=weights)
    subject.run(changing, layer)
    evaluated = partial(subject.forward, has_graph=False)  # a call between steps of training
    evaluated(changing, layer)
    changed, ways = rotated([*weights], subject.case.seed)[:_MOST], list(_WAYS.items())
    every = [(name, ways[(position + turn) % len(ways)]) for turn in range(len(ways)) for position, name in enumerate(changed)]
    for name, (said, change) in variants(subject, every):
        change(weights[name], _exchanged(weights, name))
        copies = {name: nn.Parameter(weight.detach().clone()) for name, weight in weights.items()}
        fresh = replace(subject.problem, weights=Weights(copies, weights.masks))
        wanted = subject.run(fresh, subject.built(subject.case, fresh.weights))
        for call, where in ((subject.run, ""), (evaluated, ", under no_grad")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch.nn warns that it copies weights which left cuDNN's buffer
                results = call(changing, layer)
            check_allclose(subject, wanted, results, f"after {name} alone was {said}{where}", fresh)


def _exchanged(weights: Weights, name: str) -> Tensor:
    """The weight's values in reverse order of rows; with other signs where that is the same, or would leave its pattern."""
    old = weights[name].detach()
    new = old.flip(0)
    return -old if name in weights.masks or bool((new == old).all()) else new


def _in_place(weight: nn.Parameter, new: Tensor) -> None:
    with torch.no_grad():
        weight.copy_(new)


def _replaced(weight: nn.Parameter, new: Tensor) -> None:
    weight.data = new


_WAYS: dict[str, Callable[[nn.Parameter, Tensor], object]] = {
    "changed in place": _in_place,
    "replaced by other memory (weight.data = ...)": _replaced,
    # torch does not count this as a change.
    "changed in place through weight.data": lambda weight, new: weight.data.copy_(new),
    "replaced by a part of a flat buffer (weight.data = flat[a:b].view(...))": lambda weight, new: _replaced(
        weight, memory_layout.behind(new, _BEFORE)
    ),
}


def layers_apart(subject: PropertyContext) -> None:
    """The second against the reference, since a layer built on its weights might be given the first one's as well.

    Raises WrongCase where it is wrong, but not by the first one's weights.
    """
    problem = replace(subject.problem, weights=contents.make_weights(subject.case, "second"))
    second = subject.built(subject.case, problem.weights)
    results = copy_tensors(subject.run(problem, second))
    wrong = _wrong(subject, problem, results)
    if wrong and not _wrong(subject, subject.problem, subject.whole):  # or it is wrong whatever else is alive
        if names := _taken_from_first(subject, problem, results):
            reject(wrong[0].message, f"a second layer computed with the first one's {names}")
        listed = "".join(f"\n  {check.message}" for check in wrong)
        raise WrongCase(f"wrong with other weights of the same kind:{listed}", subject.case)
    reject(subject.repeated(subject.whole, subject.run(subject.problem)), "the first layer, after a second was called")
    if subject.case.training:
        third = subject.built(subject.case, subject.problem.weights)
        own = copy_tensors(subject.run(subject.other_problem, third))
        _check_in_flight(subject, (third, second), (subject.other_problem, problem), (own, results))
        _check_on_shared_weights(subject, third)


def _check_in_flight(
    subject: PropertyContext, layers: tuple[Layer, Layer], problems: tuple[Problem, Problem], wanted: tuple[Tensors, Tensors]
) -> None:
    """Two calls of each of two layers, called as often before, then their backward passes in the same order."""
    made = [(k, GraphCall(layer, Call(problems[k]))) for _ in range(2) for k, layer in enumerate(layers)]
    for number, (k, call) in enumerate(made, 1):
        label = f"call {number} of two layers that are called in turns before any backward pass"
        check_allclose(subject, wanted[k], call.detached() | call.gradients(), label, problems[k])


def _check_on_shared_weights(subject: PropertyContext, other: Layer) -> None:
    """One backward pass over calls of two layers that were built on the same weights."""
    made = [GraphCall(layer, Call(subject.problem)) for layer in (subject.layer, other)]
    weights = {f"grad {name}": weight for name, weight in subject.problem.weights.items()}
    if not weights:  # of a cell without recurrent weights, on pre-activations
        return
    with raised_as_wrong(subject.case.device):
        gradients = torch.autograd.grad(
            [result for call in made for result in call.results.values()],
            [*weights.values()],
            subject.problem.output_gradients * 2,
            allow_unused=True,
        )
    wanted = {name: None if (gradient := subject.whole[name]) is None else 2 * gradient for name in weights}
    got: Tensors = dict(zip(weights, gradients, strict=True))
    check_allclose(subject, wanted, got, "one backward pass over two layers that share all weights")


def _taken_from_first(subject: PropertyContext, problem: Problem, results: Tensors) -> str:
    """The weights of the first layer with which the second's forward pass is right: all, some kinds, or one."""
    own, names = problem.weights, list(problem.weights)
    kinds = list(dict.fromkeys(name.partition("_l")[0] for name in names))
    chosen = [set(some) for count in range(1, len(kinds)) for some in combinations(kinds, count)]
    for taken in (names, *([n for n in names if n.partition("_l")[0] in some] for some in chosen), *([n] for n in names)):
        mixed = {name: (subject.problem.weights if name in taken else own)[name] for name in names}
        mixture = replace(problem, weights=Weights(mixed, own.masks))
        if not any("grad" not in check.tensor for check in _wrong(subject, mixture, results)):
            return "weights" if taken == names else " and ".join(taken)
    return ""


def _wrong(subject: PropertyContext, problem: Problem, tensors: Tensors) -> list[TensorCheck]:
    """The tensors that the reference contradicts."""
    checks = ReferenceResult(problem).compare(tensors, subject.declared, fewest_runs=0)
    return [check for check in checks if check.status == "failed"]


Mode = Callable[[], AbstractContextManager[object]]
_MODES: dict[str, Mode] = {"torch.inference_mode()": torch.inference_mode, "torch.no_grad()": torch.no_grad}


def evaluations_between(subject: PropertyContext) -> None:
    """Layers of their own, first called without gradients; each such call is given tensors that were made in its mode."""
    for said, mode in _MODES.items():
        with wrong_labelled(f"with calls under {said}"):
            if subject.case.training:
                _check_around_training(subject, mode)
            else:
                check_allclose(subject, subject.whole, _evaluated(subject.layer, subject.problem, mode))


def _check_around_training(subject: PropertyContext, mode: Mode) -> None:
    """An evaluation before the first training call, one between forward and backward, one after; weights change each time."""
    weights, first = contents.make_weights(subject.case), contents.make_weights(subject.case, "other")
    _put(weights, first)
    problem, other = replace(subject.problem, weights=weights), replace(subject.other_problem, weights=weights)
    layer = subject.built(subject.case, weights)
    before = _evaluated(layer, other, mode)
    _put(weights, subject.problem.weights)
    made = GraphCall(layer, Call(problem))
    between = _evaluated(layer, other, mode)
    label = "a training step around one, after another before the weights were changed"
    check_allclose(subject, subject.whole, made.detached() | made.gradients(), label)
    wanted = subject.forward(subject.other_problem)
    check_allclose(subject, wanted, between, "the one between forward and backward", subject.other_problem)
    _evaluated(layer, other, mode)
    _put(weights, first)
    again, label = _evaluated(layer, other, mode), "one after the first one's weights were put back"
    check_allclose(subject, before, again, label, replace(other, weights=first))


def _evaluated(layer: Layer, problem: Problem, mode: Mode) -> Tensors:
    """The results of a call in a mode without gradients, on x and states that were made in it."""
    case = replace(problem.case, mode="inference")
    with raised_as_wrong(case.device), mode():
        call = Call(replace(problem.copied(), case=case, output_gradients=()))
        results = call.results_by_name(call.forward(layer), ())
    return {name: None if t is None else t.detach().clone() for name, t in results.items()}


def _put(weights: Weights, new: Weights) -> None:
    for name, weight in weights.items():
        weight.data.copy_(new[name])


def state_handed_on(subject: PropertyContext) -> None:
    """Halved in place before it is handed on; in the graph of both calls; halved in place between forward and backward."""
    if not subject.problem.state:
        raise NotApplicable("no initial state")
    _check_halved_before(subject)
    if subject.case.training:
        _check_in_one_graph(subject)
        _check_halved_after(subject)


def _names(subject: PropertyContext, role: str) -> list[str]:
    return [f"{role} {name}" for name in cells.get(subject.case.cell).states]


def _check_halved_before(subject: PropertyContext) -> None:
    """The memory that the layer returned, with other values, against the same values in other memory."""
    first = subject.forward(subject.problem, has_graph=False)
    finals = tuple(state.mul_(0.5) for name in _names(subject, "final") if (state := first[name]) is not None)
    apart = replace(subject.other_problem, state=tuple(state.clone() for state in finals))
    got = copy_tensors(subject.forward(replace(apart, state=finals), has_graph=False))
    wanted = subject.forward(apart, has_graph=False)
    check_allclose(subject, wanted, got, "a final state halved in place, then handed on as initial state", apart)


def _check_in_one_graph(subject: PropertyContext) -> None:
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
    label = "a final state handed on in the graph, the first initial state no leaf"
    check_allclose(subject, wanted, got, label, whole)
    check_allclose(subject, of_later, {"grad x": gradients[-1]}, label, own)


def _made(subject: PropertyContext, call: Call, states: tuple[Tensor, ...]) -> GraphCall:
    """The call on these states, which it holds no longer than its forward pass."""
    call.state = states if len(states) > 1 else states[0]
    made = GraphCall(subject.layer, call)
    call.state = None
    return made


def _check_halved_after(subject: PropertyContext) -> None:
    """A layer may refuse its backward pass then, as torch does; it may not return other gradients."""
    for role in ("initial", "final"):
        made = GraphCall(subject.layer, Call(subject.problem.copied()))
        for name in _names(subject, role):
            (made.call.inputs if role == "initial" else made.results)[name].detach().mul_(0.5)
        try:
            got = made.gradients()
        except WrongResult:
            continue
        label = f"the {role} state halved in place by the caller between forward and backward"
        check_allclose(subject, subject.whole, got, label)
