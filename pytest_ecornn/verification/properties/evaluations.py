"""Property of calls without gradients: they may come before, within and between training steps, also under inference_mode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Layer, Weights
from pytest_ecornn.verification.calls import Call, Tensors
from pytest_ecornn.verification.properties.graph_calls import (
    GraphCall,
    check_allclose,
    labelled,
    raised_as_wrong,
    wrong_labelled,
)
from pytest_ecornn.verification.properties.subject import PropertyContext

Mode = Callable[[], AbstractContextManager[object]]
_MODES: dict[str, Mode] = {"torch.inference_mode()": torch.inference_mode, "torch.no_grad()": torch.no_grad}


def evaluations_between(subject: PropertyContext) -> str:
    """Layers of their own, first called without gradients; each such call is given tensors that were made in its mode."""
    for said, mode in _MODES.items():
        with wrong_labelled(f"with calls under {said}"):
            message = (_around_training if subject.case.training else _alone)(subject, mode)
        if message:
            return labelled(message, f"with calls under {said}")
    return ""


def _alone(subject: PropertyContext, mode: Mode) -> str:
    return check_allclose(subject, subject.whole, evaluated(subject.layer, subject.problem, mode))


def _around_training(subject: PropertyContext, mode: Mode) -> str:
    """An evaluation before the first training call, one between forward and backward, one after; weights change each time."""
    weights, first = contents.make_weights(subject.case), contents.make_weights(subject.case, "other")
    _put(weights, first)
    problem, other = (replace(one, weights=weights) for one in (subject.problem, subject.other_problem))
    layer = subject.built(subject.case, weights)
    before = evaluated(layer, other, mode)
    _put(weights, subject.problem.weights)
    made = GraphCall(layer, Call(problem))
    between = evaluated(layer, other, mode)
    if message := check_allclose(subject, subject.whole, made.detached() | made.gradients()):
        return labelled(message, "a training step around one, after another before the weights were changed")
    wanted = subject.forward(subject.other_problem)
    if message := check_allclose(subject, wanted, between, subject.other_problem):
        return labelled(message, "the one between forward and backward")
    evaluated(layer, other, mode)
    _put(weights, first)
    again = evaluated(layer, other, mode)
    return labelled(
        check_allclose(subject, before, again, replace(other, weights=first)), "one after the first one's weights were put back"
    )


def evaluated(layer: Layer, problem: Problem, mode: Mode) -> Tensors:
    """The results of a call in a mode without gradients, on x and states that were made in it."""
    case = replace(problem.case, mode="inference")
    with raised_as_wrong(case.device), mode():
        call = Call(replace(problem.copied(), case=case, output_gradients=()))
        results = call.results_by_name(call.forward(layer), ())
    return {name: None if t is None else t.detach().clone() for name, t in results.items()}


def _put(weights: Weights, new: Weights) -> None:
    for name, weight in weights.items():
        weight.data.copy_(new[name])
