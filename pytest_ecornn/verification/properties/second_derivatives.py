"""Gradients of gradients, as of a penalty on gradients that is added to a loss: all of them or an exception, never a part."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Layer
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.system import faults
from pytest_ecornn.system.error_line import error_line
from pytest_ecornn.verification import comparison
from pytest_ecornn.verification.calls import Call, Tensors
from pytest_ecornn.verification.comparison import Error
from pytest_ecornn.verification.layer_rules import layer_rule, precision_eps
from pytest_ecornn.verification.properties.subject import (
    GraphCall,
    NotApplicable,
    PropertyContext,
    check_allclose,
    needs_training,
    reject,
)
from pytest_ecornn.verification.rounding_shares import ANY
from pytest_ecornn.verification.verification import ReferenceResult, reference_device, reference_layer
from pytest_ecornn.verification.yardstick import converted

# Of the plain loop's error, and of eps: a part that is missing is no rounding.
_FACTOR, _FLOOR = 8.0, 32.0


def second_derivatives(subject: PropertyContext) -> None:
    """The loss is half the weighted square of each result, so that incoming gradients have a graph too."""
    needs_training(subject)
    problem, case = subject.problem, subject.case
    if case.contents != "normal" or case.precision != "ieee":
        raise NotApplicable("second derivatives are checked of normal contents in IEEE precision")
    results = [result for result in GraphCall(subject.layer, Call(problem)).detached().values() if result is not None]
    once = replace(problem, output_gradients=tuple(w * r for w, r in zip(problem.output_gradients, results, strict=True)))
    wanted = GraphCall(subject.layer, Call(once)).gradients()
    try:
        first, second = _derivatives(subject.layer, problem)
    except Exception as error:
        if faults.unrecoverable_reason(error, case.device):
            raise
        raise NotApplicable(f"it refuses second derivatives by {error_line(error)}") from error
    check_allclose(subject, wanted, first, "made with create_graph=True", once)
    without = [name for name, gradient in first.items() if gradient is not None and not gradient.requires_grad]
    if message := _difference(subject, second):
        message += f"; {without[0]} was made without a graph" if without else ""
        reject(message, "gradients of a loss and a penalty on its gradients, neither right nor refused")


def _derivatives(layer: Layer, problem: Problem) -> tuple[Tensors, Tensors]:
    """Gradients of a loss, made with create_graph; and those of the loss and a sum of its gradients, each with a sign.

    By `backward`: `autograd.grad` passes over the node by which torch's `once_differentiable` raises.
    """
    call = Call(problem)
    leaves = {f"grad {name}": leaf for name, leaf in call.inputs.items() if leaf.requires_grad}
    with torch.enable_grad():
        results = [result for result in call.results_by_name(call.forward(layer), ()).values() if result is not None]
        seeds = [weight * result for weight, result in zip(problem.output_gradients, results, strict=True)]
        first = torch.autograd.grad(results, [*leaves.values()], seeds, create_graph=True, allow_unused=True)
        terms = [seed * result / 2 for seed, result in zip(seeds, results, strict=True)]
        terms += [_signs(gradient) * gradient for gradient in first if gradient is not None]
        try:
            torch.autograd.backward([term.sum() for term in terms if term.requires_grad])
            return dict(zip(leaves, first, strict=True)), {name: leaf.grad for name, leaf in leaves.items()}
        finally:
            for leaf in leaves.values():
                leaf.grad = None


def _signs(like: Tensor) -> Tensor:
    """1 and -1 in an order of chance, the same for every tensor of that size."""
    signs = 2 * torch.randint(2, like.shape, generator=torch.Generator().manual_seed(like.numel())) - 1
    return signs.to(like.device, like.dtype)


def _difference(subject: PropertyContext, second: Tensors) -> str:
    """Describes a tensor that is further from the float64 reference's than a plain loop's, many times; empty if none is."""
    case, device = subject.case, reference_device(subject.case)
    problem = subject.problem if device == case.device else contents.to_device(subject.problem, device)
    problem64, expected = converted(problem, torch.float64), ReferenceResult(problem)
    loop = ReferenceLoop(subject.declared).build(problem.case, problem.weights)
    (_, wanted), (_, plain) = _derivatives(reference_layer(problem64), problem64), _derivatives(loop, problem)
    eps = precision_eps(case)
    for name, reference in wanted.items():
        if reference is None:
            continue
        rule, valid, loops = layer_rule(case, name, reference.shape), expected.valid(name), plain[name]
        values = torch.zeros_like(reference) if loops is None else comparison.to_float64(loops, reference.device)
        yard = {
            label: Error(_FACTOR * error.rms + _FLOOR * eps, _FACTOR * error.maximum + _FLOOR * eps, error.count, ANY)
            for label, error in comparison.errors(values, reference, rule.slices, valid, 0.0).items()
        }
        verdict = comparison.check_tensor(rule, second[name], reference, yard, valid)
        if verdict.status == "failed":
            return verdict.message
    return ""
