"""Properties of weights: one that changes by itself between calls is used, in place or as other memory, all others as before;
and two layers of one case, alive at once, each compute with the weights that they were built on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Weights
from pytest_ecornn.verification.agreement import ResultComparator
from pytest_ecornn.verification.calls import Tensors
from pytest_ecornn.verification.properties.graph_calls import check_allclose, labelled, needs_training, rotated, variants
from pytest_ecornn.verification.properties.subject import PropertyContext
from pytest_ecornn.verification.verification import ReferenceResult, failed_tensors

_BEFORE = 128  # elements of a flat buffer, before the part that becomes a weight
_MOST = 4  # weights of a case that are changed, each seed's from another one on


def each_weight_seen(subject: PropertyContext) -> str:
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
        fresh = replace(subject.problem, weights=_copied(weights))
        wanted = subject.run(fresh, subject.built(subject.case, fresh.weights))
        agreement = ResultComparator(fresh, subject.declared)
        for call, where in ((subject.run, ""), (evaluated, ", under no_grad")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch.nn warns that it copies weights which left cuDNN's buffer
                results = call(changing, layer)
            if message := check_allclose(subject, wanted, results, agreement):
                return labelled(message, f"after {name} alone was {said}{where}")
    return ""


def _exchanged(weights: Weights, name: str) -> Tensor:
    """The weight's values in reverse order of rows; with other signs where that is the same, or would leave its pattern."""
    old = weights[name].detach()
    new = old.flip(0)
    return -old if name in weights.masks or bool((new == old).all()) else new


def _copied(weights: Weights) -> Weights:
    return Weights({name: nn.Parameter(one.detach().clone()) for name, one in weights.items()}, weights.masks)


def _in_place(weight: nn.Parameter, new: Tensor) -> None:
    with torch.no_grad():
        weight.copy_(new)


def _replaced(weight: nn.Parameter, new: Tensor) -> None:
    weight.data = new


def _part_of_a_buffer(weight: nn.Parameter, new: Tensor) -> None:
    buffer = new.new_full((_BEFORE + new.numel(),), float("nan"))
    weight.data = buffer[_BEFORE:].view(new.shape).copy_(new)


_WAYS: dict[str, Callable[[nn.Parameter, Tensor], object]] = {
    "changed in place": _in_place,
    "replaced by other memory (weight.data = ...)": _replaced,
    "changed in place through weight.data": lambda weight, new: weight.data.copy_(
        new
    ),  # which torch does not count as a change
    "replaced by a part of a flat buffer (weight.data = flat[a:b].view(...))": _part_of_a_buffer,
}


def layers_apart(subject: PropertyContext) -> str:
    """The second against the reference, since a layer built on its weights might be given the first one's as well."""
    problem = replace(subject.problem, weights=contents.make_weights(subject.case, "second"))
    second = subject.built(subject.case, problem.weights)
    message = _wrong(subject, problem, subject.run(problem, second))
    if message and not _wrong(subject, subject.problem, subject.whole):  # or it is wrong whatever else is alive
        return f"a second layer on weights of its own: {message.splitlines()[1].strip()}"
    return labelled(subject.repeated(subject.whole, subject.run(subject.problem)), "the first layer, after a second was called")


def _wrong(subject: PropertyContext, problem: Problem, tensors: Tensors) -> str:
    """The tensors that the reference contradicts."""
    verdicts = ReferenceResult(problem).compare(tensors, subject.declared)
    return failed_tensors(subject.case.cell, subject.case, verdicts)
