"""Properties of the backward pass's arguments: results that nobody uses, and gradients of any memory layout and size.

Gradients that a GradScaler has scaled give scaled gradients, in which an overflow shows.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import torch
from torch import Tensor

from pytest_ecornn.cases import contents, memory_layout
from pytest_ecornn.contract import Layer
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.verification.calls import Call, Tensors
from pytest_ecornn.verification.properties.graph_calls import GraphCall, check_allclose, labelled, needs_training, variants
from pytest_ecornn.verification.properties.subject import PropertyContext

Given = tuple[Tensor | None, ...]
_SCALE = 2.0**16  # a GradScaler's first
_FAINT, _SHOWN = 2.0**-80, 2.0**-50  # beside the others, and the least that is compared


def unused_results(subject: PropertyContext) -> str:
    """One result alone has an incoming gradient, against others that have one of zeros; then one step alone."""
    needs_training(subject)
    weights, names = subject.problem.output_gradients, list(GraphCall(subject.layer, Call(subject.problem)).results)
    for used in variants(subject, range(len(weights))):
        zeros = tuple(weight if number == used else torch.zeros_like(weight) for number, weight in enumerate(weights))
        missing: Given = tuple(weight if number == used else None for number, weight in enumerate(weights))
        problem = replace(subject.problem, output_gradients=zeros)
        wanted = _gradients(subject, problem, zeros)
        subject.run(subject.other_problem)  # or what a backward pass leaves behind would be those zeros
        message = check_allclose(subject, wanted, _gradients(subject, problem, missing), problem)
        if message:
            return labelled(message, f"only {names[used]} used")
    return _one_step_used(subject)


def _one_step_used(subject: PropertyContext) -> str:
    """The output at a step that every sequence has, against gradients elsewhere that no rounding shows."""
    lengths, case = subject.problem.lengths, subject.case
    at, time = case.seed % (case.steps if lengths is None else max(1, int(lengths.min()))), 1 if case.batch_first else 0
    first, *others = subject.problem.output_gradients
    step, faint = torch.zeros_like(first), first * _FAINT
    for alone in (step, faint):
        alone.select(time, at).copy_(first.select(time, at))
    problem = replace(subject.problem, output_gradients=(faint, *(weight * _FAINT for weight in others)))
    both = (_gradients(subject, problem, given) for given in (problem.output_gradients, (step, *(None for _ in others))))
    wanted, got = ({name: None if t is None else t.where(t.abs() > _SHOWN, 0.0) for name, t in one.items()} for one in both)
    message = check_allclose(subject, wanted, got, problem)
    return labelled(message, f"only the output of step {at} used")


def incoming_layouts(subject: PropertyContext) -> str:
    """Incoming gradients that lie otherwise in memory, against contiguous ones of the same values."""
    needs_training(subject)
    for name, laid in variants(subject, list(memory_layout.GRADIENT_LAYOUTS.items())):
        given = tuple(map(laid, subject.problem.output_gradients))
        problem = replace(
            subject.problem, output_gradients=tuple(one.clone(memory_format=torch.contiguous_format) for one in given)
        )
        wanted = _gradients(subject, problem, problem.output_gradients)
        message = check_allclose(subject, wanted, _gradients(subject, problem, given), problem)
        if message:
            return labelled(message, f"incoming gradients {name}")
    return ""


def _gradients(subject: PropertyContext, problem: contents.Problem, given: Given) -> Tensors:
    return GraphCall(subject.layer, Call(problem)).gradients(given)


def incoming_sizes(subject: PropertyContext) -> str:
    """A power of two is exact where the range allows it. What is not finite must not be finite in the biases' gradients."""
    needs_training(subject)
    return _scaled(subject) or _overflowing(subject)


def _scaled(subject: PropertyContext) -> str:
    if subject.case.dtype == "float16":  # whose largest number the scale is beyond
        return ""
    given = tuple(weight * _SCALE for weight in subject.problem.output_gradients)
    got = _gradients_by(subject, subject.layer, given)
    back = {name: None if gradient is None else gradient / _SCALE for name, gradient in got.items()}
    return labelled(check_allclose(subject, subject.whole, back), f"incoming gradients {_SCALE:g} times as large")


def _overflowing(subject: PropertyContext) -> str:
    """Checks that inf and NaN show where they show in the plain loop's gradient: relu's derivative may be 0."""
    loop = ReferenceLoop(subject.declared).build(subject.case, subject.problem.weights)
    for value in (inf, nan):
        first = subject.problem.output_gradients[0].clone()
        first[0, 0] = value  # the first step of the first sequence, whichever dimension is which
        given = (first, *subject.problem.output_gradients[1:])
        wanted, got = (_gradients_by(subject, layer, given) for layer in (loop, subject.layer))
        for name in _showing(wanted):
            if not _is_finite(wanted[name]) and _is_finite(got[name]):
                return f"incoming gradients of {value}: {name}: expected it to show, got finite numbers"
    return ""


def _showing(gradients: Tensors) -> list[str]:
    """The gradients that are sums of gates' gradients, or are these: no factor may be 0."""
    return [name for name in gradients if name.startswith("grad bias_ih")] or ["grad x"]


def _is_finite(gradient: Tensor | None) -> bool:
    return gradient is None or bool(gradient.isfinite().all())


def _gradients_by(subject: PropertyContext, layer: Layer, given: tuple[Tensor, ...]) -> Tensors:
    return GraphCall(layer, Call(replace(subject.problem, output_gradients=given))).gradients()
