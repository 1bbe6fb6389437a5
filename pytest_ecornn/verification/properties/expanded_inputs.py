"""Properties of tensors that stand for several: one initial state, or one sequence with its state and length, for all of the
batch by strides of 0, and one tensor for every initial state, as `(zeros, zeros)` does.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.contents import Problem, placed_tensor
from pytest_ecornn.contract import cells
from pytest_ecornn.verification import overlap
from pytest_ecornn.verification.agreement import ResultComparator
from pytest_ecornn.verification.calls import Call, Tensors
from pytest_ecornn.verification.properties.graph_calls import check_allclose, labelled
from pytest_ecornn.verification.properties.subject import NotApplicable, PropertyContext, copy_tensors


def expanded_inputs(subject: PropertyContext) -> str:
    """Against the same values with memory of their own, by a layer that is built for x with gaps between its rows."""
    case = replace(subject.case, layout="strided")
    if case.batch < 2:
        raise NotApplicable("one sequence")
    layer = subject.built(case, subject.problem.weights)
    own = contents.problem(case, weights=subject.problem.weights)
    states = replace(own, state=tuple(_of_first(state, 1) for state in own.state))
    lengths = None if own.lengths is None else own.lengths.max().expand(own.lengths.shape)
    alike = replace(states, x=_of_first(own.x, 0 if case.batch_first else 1), lengths=lengths)
    for expanded, said in ((states, "one initial state"), (alike, "one sequence")):
        if expanded is states and not own.state:
            continue
        apart = _apart(own, expanded)
        wanted = copy_tensors(subject.run(apart, layer))
        got = subject.run(expanded, layer)
        for name in ("output", *(f"final {name}" for name in cells.get(case.cell).states)):
            if (result := got[name]) is not None and overlap.is_folded(result):
                return f"{said} expanded over the batch: {name}: expected memory of its own for each element"
        if message := check_allclose(subject, wanted, got, ResultComparator(apart, subject.declared)):
            return labelled(message, f"{said} expanded over the batch")
    return ""


def _of_first(tensor: Tensor, batch: int) -> Tensor:
    """The first sequence's, expanded over all."""
    return tensor.narrow(batch, 0, 1).expand(tensor.shape)


def _apart(like: Problem, problem: Problem) -> Problem:
    """Returns the problem's values in memory laid out like another problem's."""
    x = contents.placed_tensor(like.x).copy_(problem.x)
    state = tuple(contents.placed_tensor(to).copy_(one) for to, one in zip(like.state, problem.state, strict=True))
    lengths = None if problem.lengths is None else problem.lengths.contiguous()
    return replace(problem, x=x, state=state, lengths=lengths)


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
