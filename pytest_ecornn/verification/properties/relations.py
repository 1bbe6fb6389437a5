"""Properties of the function: what every right recurrent layer obeys, whatever its equations; and inputs that stand for many.

Each takes a `PropertyContext`, and raises WrongResult that says what is wrong in one line, or NotApplicable.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.contents import Problem, placed_tensor
from pytest_ecornn.contract import LAYOUTS, cells
from pytest_ecornn.verification import overlap
from pytest_ecornn.verification.agreement import ResultComparator
from pytest_ecornn.verification.calls import Tensors, copy_tensors
from pytest_ecornn.verification.properties.subject import NotApplicable, PropertyContext, check_allclose, reject


def causal(subject: PropertyContext) -> None:
    """The steps on the far side of a change of x, and of its resets, in the direction in which they are taken.

    Sizes are the same, so each sum is, and a deterministic layer gives the same bits.
    """
    case = subject.case
    if case.steps < 2 or (case.bidirectional and case.layers > 1):
        raise NotApplicable("one step, or layers that look both ways")
    at = 1 + case.seed % (case.steps - 1)
    for direction, changed in enumerate((slice(at, None), slice(at))[: case.directions]):
        altered = subject.problem.copied()
        for tensor, other in ((altered.x, subject.other_problem.x), (altered.resets, subject.other_problem.resets)):
            if tensor is not None and other is not None:
                _steps(tensor, case.batch_first)[changed] = _steps(other, case.batch_first)[changed]
        got = subject.forward(altered)["output"]
        untouched = slice(at) if direction == 0 else slice(at, None)
        part = slice(direction * case.hidden_size, (direction + 1) * case.hidden_size)
        if message := subject.repeated(*_only(subject, got, untouched, part)):
            far, near = ("from", "before") if direction == 0 else ("before", "from")
            reject(f"x changed {far} step {at}; {near} it, {message}")


def _only(subject: PropertyContext, got: Tensor | None, steps: slice, part: slice) -> tuple[Tensors, Tensors]:
    """The output as it was and as it came, which differ at most in the steps and features named."""
    wanted = subject.whole["output"]
    assert wanted is not None
    assert got is not None
    mixed = wanted.clone()
    first = subject.case.batch_first
    _steps(mixed, first)[steps][..., part] = _steps(got, first)[steps][..., part]
    return {"output": wanted}, {"output": mixed}


def _steps(tensor: Tensor, batch_first: bool) -> Tensor:
    """Seen with time first."""
    return tensor.transpose(0, 1) if batch_first else tensor


def split_in_time(subject: PropertyContext) -> None:
    """Two layers of fewer steps, the second from where the first ended.

    The state is rounded in between, so the loop that tells how near is near rounds it at each step.
    """
    case, problem = subject.case, subject.problem
    if case.steps < 2 or case.bidirectional:
        raise NotApplicable("one step, or a direction that begins at the end")
    at = case.steps // 2 if subject.implementation.costly_shapes else 1 + case.seed % (case.steps - 1)
    first = _part(subject, slice(at), problem.state)
    begun = subject.forward(first, subject.built(first.case, first.weights))
    names = cells.get(case.cell).states
    second = _part(subject, slice(at, None), tuple(t for name in names if (t := begun[f"final {name}"]) is not None))
    ended = subject.forward(second, subject.built(second.case, second.weights))
    got = _joined(subject, at, begun, ended)
    wanted = {name: subject.whole[name] for name in got}
    message = ResultComparator(problem, subject.declared._replace(carry="storage")).allclose(wanted, got)
    reject(message, f"the steps before {at}, then the rest from their final state")


def _part(subject: PropertyContext, steps: slice, state: tuple[Tensor, ...]) -> Problem:
    """Some of the steps as a problem; a sequence that ends before them is given one, which is not looked at."""
    problem, batch_first = subject.problem, subject.case.batch_first

    def cut(tensor: Tensor) -> Tensor:
        return _steps(_steps(tensor, batch_first)[steps], batch_first).clone(memory_format=torch.contiguous_format)

    x, resets = cut(problem.x), None if problem.resets is None else cut(problem.resets)
    count = x.shape[1 if batch_first else 0]
    lengths = None if problem.lengths is None else (problem.lengths - (steps.start or 0)).clamp(1, count)
    case = replace(subject.case, steps=count, has_state=bool(state), layout="contiguous")
    weights = contents.make_weights(subject.case)
    return replace(problem, case=case, weights=weights, x=x, state=state, lengths=lengths, resets=resets, output_gradients=())


def _joined(subject: PropertyContext, at: int, begun: Tensors, ended: Tensors) -> Tensors:
    """Joins the results of both parts. A sequence that ended in the first takes nothing from the second."""
    lengths, batch_first = subject.problem.lengths, subject.case.batch_first
    joined: Tensors = {}
    for name, late in ended.items():
        early = begun[name]
        assert early is not None
        assert late is not None
        if lengths is not None:
            goes_on = (lengths > at).to(late.device)[:, None]  # [B, 1]
            is_output = name == "output"
            late = torch.where(goes_on[:, None] if is_output and batch_first else goes_on, late, 0 if is_output else early)
        joined[name] = torch.cat([early, late], 1 if batch_first else 0) if name == "output" else late
    return joined


def batch_permutation(subject: PropertyContext) -> None:
    """The sequences the other way round; sums over the batch, and blocks of it, are others then."""
    if subject.case.batch < 2:
        raise NotApplicable("one sequence")
    problem, case = subject.problem, subject.case
    turned = problem.map(
        lambda name, t: t if name in problem.weights else placed_tensor(t, partial(_reverse_batch, case.batch_first, name))
    )
    turned = replace(turned, weights=problem.weights)
    got = {name: t if t is None else _reverse_batch(case.batch_first, name, t) for name, t in subject.run(turned).items()}
    reject(subject.agreement.allclose(subject.whole, got), "the sequences given in reverse order")


def _reverse_batch(batch_first: bool, name: str, tensor: Tensor) -> Tensor:
    """The tensor of that name with its sequences the other way round."""
    if name in ("x", "resets", "output", "grad x", "loss weight 0"):
        return tensor.flip(0 if batch_first else 1)
    if name.startswith(("final", "initial", "grad initial", "loss weight")):
        return tensor.flip(1)
    return tensor.flip(0) if name == "lengths" else tensor


def layouts(subject: PropertyContext) -> None:
    """Compares the same x, states and lengths in each other layout, by a layer built for it."""
    refused: list[NotApplicable] = []
    others = [replace(subject.case, layout=layout) for layout in LAYOUTS if layout != subject.case.layout]
    for case in others:
        problem = contents.problem(case)
        try:
            got = subject.run(problem, subject.built(case, problem.weights))
        except NotApplicable as reason:
            refused.append(reason)
            continue
        label = f"{case.layout} in memory in place of {subject.case.layout}"
        reject(subject.agreement.allclose(subject.whole, got), label)
    if len(refused) == len(others):
        raise refused[0]


def expanded_inputs(subject: PropertyContext) -> None:
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
        label = f"{said} expanded over the batch"
        apart = _apart(own, expanded)
        wanted = copy_tensors(subject.run(apart, layer))
        got = subject.run(expanded, layer)
        for name in ("output", *(f"final {name}" for name in cells.get(case.cell).states)):
            if (result := got[name]) is not None and overlap.is_folded(result):
                reject(f"{name}: expected memory of its own for each element", label)
        check_allclose(subject, wanted, got, label, apart)


def _of_first(tensor: Tensor, batch: int) -> Tensor:
    """The first sequence's, expanded over all."""
    return tensor.narrow(batch, 0, 1).expand(tensor.shape)


def _apart(like: Problem, problem: Problem) -> Problem:
    """Returns the problem's values in memory laid out like another problem's."""
    x = contents.placed_tensor(like.x).copy_(problem.x)
    states = zip(like.state, problem.state, strict=True)
    state = tuple(contents.placed_tensor(place).copy_(values) for place, values in states)
    lengths = None if problem.lengths is None else problem.lengths.contiguous()
    return replace(problem, x=x, state=state, lengths=lengths)


def same_state(subject: PropertyContext) -> None:
    """Results against those of a call whose states have the same values in memory of their own; with gradients and without."""
    first, *others = subject.problem.state or (None,)
    if first is None or not others:
        raise NotApplicable("no two initial states")
    apart = replace(subject.problem, state=(first, *(placed_tensor(first) for _ in others)))
    shared = replace(subject.problem, state=(first,) * (1 + len(others)))
    for is_enabled in (False, True) if subject.case.training else (False,):
        wanted, got = (copy_tensors(subject.forward(problem, has_graph=is_enabled)) for problem in (apart, shared))
        label = "one tensor as all initial states" + ("" if is_enabled else ", without gradients")
        check_allclose(subject, wanted, got, label, apart)
