"""Property: incoming gradients that a GradScaler has scaled give scaled gradients, in which an overflow shows."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

from torch import Tensor

from pytest_ecornn.contract import Layer
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.verification.calls import Call, Tensors
from pytest_ecornn.verification.properties.graph_calls import GraphCall, check_allclose, labelled, needs_training
from pytest_ecornn.verification.properties.subject import PropertyContext

_SCALE = 2.0**16  # a GradScaler's first


def incoming_sizes(subject: PropertyContext) -> str:
    """A power of two is exact where the range allows it. What is not finite must not be finite in the biases' gradients."""
    needs_training(subject)
    return _scaled(subject) or _overflowing(subject)


def _scaled(subject: PropertyContext) -> str:
    if subject.case.dtype == "float16":  # whose largest number the scale is beyond
        return ""
    given = tuple(weight * _SCALE for weight in subject.problem.output_gradients)
    got = _gradients(subject, subject.layer, given)
    back = {name: None if gradient is None else gradient / _SCALE for name, gradient in got.items()}
    return labelled(check_allclose(subject, subject.whole, back), f"incoming gradients {_SCALE:g} times as large")


def _overflowing(subject: PropertyContext) -> str:
    """Checks that inf and NaN show where they show in the plain loop's gradient: relu's derivative may be 0."""
    loop = ReferenceLoop(subject.declared).build(subject.case, subject.problem.weights)
    for value in (inf, nan):
        first = subject.problem.output_gradients[0].clone()
        first[0, 0] = value  # the first step of the first sequence, whichever dimension is which
        given = (first, *subject.problem.output_gradients[1:])
        wanted, got = (_gradients(subject, layer, given) for layer in (loop, subject.layer))
        for name in _showing(wanted):
            if not _is_finite(wanted[name]) and _is_finite(got[name]):
                return f"incoming gradients of {value}: {name}: expected it to show, got finite numbers"
    return ""


def _showing(gradients: Tensors) -> list[str]:
    """The gradients that are sums of gates' gradients, or are these: no factor may be 0."""
    return [name for name in gradients if name.startswith("grad bias_ih")] or ["grad x"]


def _is_finite(gradient: Tensor | None) -> bool:
    return gradient is None or bool(gradient.isfinite().all())


def _gradients(subject: PropertyContext, layer: Layer, given: tuple[Tensor, ...]) -> Tensors:
    return GraphCall(layer, Call(replace(subject.problem, output_gradients=given))).gradients()
