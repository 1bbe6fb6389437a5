"""Properties of backward passes: apart from forward passes, in any order, twice over a graph, into `.grad`, for some inputs.

And of their arguments: results that nobody uses, incoming gradients of any memory layout and size. Gradients that a GradScaler
has scaled give scaled gradients, in which an overflow shows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf, nan

import torch
from torch import Tensor

from pytest_ecornn.cases import contents, memory_layout
from pytest_ecornn.cases.memory_layout import with_first
from pytest_ecornn.contract import Layer, cells
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.verification import overlap
from pytest_ecornn.verification.agreement import bitwise_equal
from pytest_ecornn.verification.calls import Call, Tensors, copy_tensors
from pytest_ecornn.verification.properties.subject import (
    GraphCall,
    PropertyContext,
    check_allclose,
    needs_training,
    or_zeros,
    reject,
    rotated,
    variants,
)


def calls_interleaved(subject: PropertyContext) -> None:
    """Two forward passes, then their backward passes in the same order and in the reverse one."""
    needs_training(subject)
    problems = (subject.problem, subject.other_problem)
    wanted = (subject.whole, copy_tensors(subject.run(subject.other_problem)))
    for order, said in (((0, 1), "in the order of the calls"), ((1, 0), "in reverse order")):
        made = [GraphCall(subject.layer, Call(problem)) for problem in problems]
        for number in order:
            got = made[number].gradients() | made[number].detached()
            label = f"call {number + 1} of two, whose backward passes come {said}"
            check_allclose(subject, wanted[number], got, label, problems[number])


def backward_twice(subject: PropertyContext) -> None:
    """The graph is retained while another call is made, whose tensors saved for backward must be its own.

    The first pass's gradients are looked at again after the others, of which one has its own incoming gradients.
    """
    needs_training(subject)
    made = GraphCall(subject.layer, Call(subject.problem))
    first = made.gradients(is_retained=True)
    copies = copy_tensors(first)
    check_allclose(subject, subject.whole, first, "a backward pass whose graph is retained")
    between = GraphCall(subject.layer, Call(subject.other_problem))
    second = made.gradients(is_retained=True)
    check_allclose(subject, copies, second, "a second backward pass over the same graph, after another call")
    del between
    problem = replace(subject.problem, output_gradients=tuple(weight.flip(-1) for weight in subject.problem.output_gradients))
    wanted = GraphCall(subject.layer, Call(problem)).gradients()
    got = made.gradients(problem.output_gradients)
    check_allclose(subject, wanted, got, "a third backward pass, with other incoming gradients", problem)
    reject(bitwise_equal({"output": None, **copies}, {"output": None, **first}), "after other passes")


def grad_untouched(subject: PropertyContext) -> None:
    """`autograd.grad` leaves `.grad` alone; `backward` adds to it once, in memory that no other gradient shares."""
    needs_training(subject)
    call = Call(subject.problem)
    leaves = {name: leaf for name, leaf in call.inputs.items() if leaf.requires_grad}
    try:
        for leaf in leaves.values():
            leaf.grad = None
        GraphCall(subject.layer, call).gradients()
        if touched := [name for name, leaf in leaves.items() if leaf.grad is not None]:
            reject(f"expected autograd.grad to leave .grad of {touched[0]} alone, but it was set")
        GraphCall(subject.layer, call).accumulate()
        got = {f"grad {name}": leaf.grad for name, leaf in leaves.items()}
        check_allclose(subject, subject.whole, got, ".grad after backward()")
        reject(overlap.shared([(f".{name}", tensor) for name, tensor in got.items() if tensor is not None]))
        _check_added_to(subject, call, leaves)
    finally:
        for leaf in leaves.values():
            leaf.grad = None


def _check_added_to(subject: PropertyContext, call: Call, leaves: dict[str, Tensor]) -> None:
    """Each `.grad` begins as the gradient itself, in some form; then three backward passes begin with none."""
    whole = {name: or_zeros(subject.whole[f"grad {name}"], leaf) for name, leaf in leaves.items()}

    def accumulated() -> Tensors:
        return {f"grad {name}": leaf.grad for name, leaf in leaves.items()}

    for said, form in variants(subject, list(_GRADS.items())):
        for name, leaf in leaves.items():
            leaf.grad = form(whole[name].clone())
        before = copy_tensors(accumulated())
        gradients = GraphCall(subject.layer, call).gradients()
        check_allclose(subject, subject.whole, gradients, f"autograd.grad where .grad is there, {said}")
        changed = bitwise_equal({"output": None, **before}, {"output": None, **accumulated()})
        reject(changed, f"the .grad that was there, {said}, after autograd.grad")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a .grad with other strides than its leaf's
            GraphCall(subject.layer, call).accumulate()
        wanted: Tensors = {f"grad {name}": form(gradient.clone()) + gradient for name, gradient in whole.items()}
        check_allclose(subject, wanted, accumulated(), f"backward() where .grad is there, {said}")
    for leaf in leaves.values():
        leaf.grad = None
    for _ in range(3):
        GraphCall(subject.layer, call).accumulate()
    threefold: Tensors = {f"grad {name}": gradient + gradient + gradient for name, gradient in whole.items()}
    check_allclose(subject, threefold, accumulated(), "backward() of three calls")


def _nan_first(gradient: Tensor) -> Tensor:
    copy = gradient.clone()
    copy[(0,) * copy.ndim] = float("nan")
    return copy


_GRADS: dict[str, Callable[[Tensor], Tensor]] = {
    "with the last dimension first in memory": partial(with_first, dimension=-1),
    "with a NaN": _nan_first,
    "a tensor of numbers": torch.clone,
}


Names = tuple[str, ...]


def gradients_required(subject: PropertyContext) -> None:
    """Each choice against the gradients of all; then one gradient asked for alone, and a call without a graph."""
    needs_training(subject)
    for frozen in variants(subject, _frozen(subject)):
        with _required(subject, frozen) as call:
            made = GraphCall(subject.layer, call)
            has_graph = [name for name, result in made.results.items() if result.requires_grad]
            if has_graph and not made.leaves:
                reject(f"expected {has_graph[0]} without a graph, as nothing requires a gradient, got one")
            got = made.detached() | made.gradients()
        check_allclose(subject, subject.whole, got, f"no gradient required of {', '.join(frozen)}")
    _check_one_asked(subject)
    names = ["output", *(f"final {name}" for name in cells.get(subject.case.cell).states)]
    got = subject.forward(subject.problem, has_graph=False)  # the layer of a training program, asked to predict
    check_allclose(subject, {name: subject.whole[name] for name in names}, got, "under torch.no_grad()")


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


def _check_one_asked(subject: PropertyContext) -> None:
    """All require gradients, and autograd.grad is asked for one."""
    call = Call(subject.problem)
    leaves = [name for name, leaf in call.inputs.items() if leaf.requires_grad]
    asked = leaves[subject.case.seed % len(leaves)]
    got = GraphCall(subject.layer, call).gradients(asked=asked)
    check_allclose(subject, subject.whole, got, f"only the gradient of {asked} asked for")


Given = tuple[Tensor | None, ...]
_SCALE = 2.0**16  # a GradScaler's first
_FAINT, _SHOWN = 2.0**-80, 2.0**-50  # beside the others, and the least that is compared


def unused_results(subject: PropertyContext) -> None:
    """One result alone has an incoming gradient, against others that have one of zeros; then one step alone."""
    needs_training(subject)
    weights, names = subject.problem.output_gradients, list(GraphCall(subject.layer, Call(subject.problem)).results)
    for used in variants(subject, range(len(weights))):
        zeros = tuple(weight if number == used else torch.zeros_like(weight) for number, weight in enumerate(weights))
        missing: Given = tuple(weight if number == used else None for number, weight in enumerate(weights))
        problem = replace(subject.problem, output_gradients=zeros)
        wanted = _gradients(subject, problem, zeros)
        subject.run(subject.other_problem)  # or what a backward pass leaves behind would be those zeros
        check_allclose(subject, wanted, _gradients(subject, problem, missing), f"only {names[used]} used", problem)
    _check_one_step_used(subject)


def _check_one_step_used(subject: PropertyContext) -> None:
    """The output at a step that every sequence has, against gradients elsewhere that no rounding shows."""
    lengths, case = subject.problem.lengths, subject.case
    at, time = case.seed % (case.steps if lengths is None else max(1, int(lengths.min()))), 1 if case.batch_first else 0
    first, *others = subject.problem.output_gradients
    step, faint = torch.zeros_like(first), first * _FAINT
    for alone in (step, faint):
        alone.select(time, at).copy_(first.select(time, at))
    problem = replace(subject.problem, output_gradients=(faint, *(weight * _FAINT for weight in others)))

    def shown(incoming: Given) -> Tensors:
        gradients = _gradients(subject, problem, incoming)
        return {name: None if t is None else t.where(t.abs() > _SHOWN, 0.0) for name, t in gradients.items()}

    wanted, got = shown(problem.output_gradients), shown((step, *(None for _ in others)))
    check_allclose(subject, wanted, got, f"only the output of step {at} used", problem)


def incoming_layouts(subject: PropertyContext) -> None:
    """Incoming gradients that lie otherwise in memory, against contiguous ones of the same values."""
    needs_training(subject)
    for name, laid in variants(subject, list(memory_layout.GRADIENT_LAYOUTS.items())):
        gradients = tuple(map(laid, subject.problem.output_gradients))
        plain = tuple(gradient.clone(memory_format=torch.contiguous_format) for gradient in gradients)
        problem = replace(subject.problem, output_gradients=plain)
        wanted = _gradients(subject, problem, problem.output_gradients)
        check_allclose(subject, wanted, _gradients(subject, problem, gradients), f"incoming gradients {name}", problem)


def _gradients(subject: PropertyContext, problem: contents.Problem, incoming: Given) -> Tensors:
    return GraphCall(subject.layer, Call(problem)).gradients(incoming)


def incoming_sizes(subject: PropertyContext) -> None:
    """A power of two is exact where the range allows it. What is not finite must not be finite in the biases' gradients."""
    needs_training(subject)
    if subject.case.dtype != "float16":  # whose largest number the scale is beyond
        scaled = tuple(weight * _SCALE for weight in subject.problem.output_gradients)
        got = _gradients_by(subject, subject.layer, scaled)
        back = {name: None if gradient is None else gradient / _SCALE for name, gradient in got.items()}
        check_allclose(subject, subject.whole, back, f"incoming gradients {_SCALE:g} times as large")
    _check_overflowing(subject)


def _check_overflowing(subject: PropertyContext) -> None:
    """Checks that inf and NaN show where they show in the plain loop's gradient: relu's derivative may be 0."""
    loop = ReferenceLoop(subject.declared).build(subject.case, subject.problem.weights)
    for value in (inf, nan):
        first = subject.problem.output_gradients[0].clone()
        first[0, 0] = value  # the first step of the first sequence, whichever dimension is which
        incoming = (first, *subject.problem.output_gradients[1:])
        wanted, got = (_gradients_by(subject, layer, incoming) for layer in (loop, subject.layer))
        # Gradients that are sums of gates' gradients, or are these: no factor may be 0.
        for name in [name for name in wanted if name.startswith("grad bias_ih")] or ["grad x"]:
            if not _is_finite(wanted[name]) and _is_finite(got[name]):
                reject(f"{name}: expected it to show, got finite numbers", f"incoming gradients of {value}")


def _is_finite(gradient: Tensor | None) -> bool:
    return gradient is None or bool(gradient.isfinite().all())


def _gradients_by(subject: PropertyContext, layer: Layer, incoming: tuple[Tensor, ...]) -> Tensors:
    return GraphCall(layer, Call(replace(subject.problem, output_gradients=incoming))).gradients()
