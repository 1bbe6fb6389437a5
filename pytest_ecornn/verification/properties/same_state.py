"""Property: one tensor may be given as every initial state, as `(zeros, zeros)` is."""

from __future__ import annotations

from dataclasses import replace

import torch

from pytest_ecornn.cases.contents import Problem, placed_tensor
from pytest_ecornn.verification.agreement import ResultComparator
from pytest_ecornn.verification.calls import Call, Tensors
from pytest_ecornn.verification.properties.graph_calls import check_allclose, labelled
from pytest_ecornn.verification.properties.subject import NotApplicable, PropertyContext


def same_state(subject: PropertyContext) -> str:
    """Results against those of a call whose states have the same values in memory of their own; with gradients and without."""
    first, *others = subject.problem.state or (None,)
    if first is None or not others:
        raise NotApplicable("no two initial states")
    apart = replace(subject.problem, state=(first, *(placed_tensor(first) for _ in others)))
    shared = replace(subject.problem, state=(first,) * (1 + len(others)))
    for is_enabled in (False, True) if subject.case.training else (False,):
        wanted, got = (_results(subject, problem, is_enabled) for problem in (apart, shared))
        if message := check_allclose(subject, wanted, got, ResultComparator(apart, subject.declared)):
            return labelled(message, "one tensor as all initial states" + ("" if is_enabled else ", without gradients"))
    return ""


def _results(subject: PropertyContext, problem: Problem, is_enabled: bool) -> Tensors:
    call = Call(problem)
    with torch.set_grad_enabled(is_enabled):
        tensors = call.results_by_name(call.forward(subject.layer), ())
    return {name: None if one is None else one.detach().clone() for name, one in tensors.items()}
