"""Property of calls that raise: out of memory, in a hook, on a wrong argument. The next right call is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NoReturn, cast

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pytest_ecornn.contract import Layer
from pytest_ecornn.system import faults
from pytest_ecornn.verification.calls import Call, Copies
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard
from pytest_ecornn.verification.properties.graph_calls import labelled, raised_as_wrong, variants, wrong_labelled
from pytest_ecornn.verification.properties.operators import AtOperator, spread_places
from pytest_ecornn.verification.properties.subject import PropertyContext, changed

RaisingCall = Callable[[PropertyContext, Layer, Call], object]


def call_raises(subject: PropertyContext) -> str:
    """Memory runs out in the first call of new layers; the layer that is there raises for other reasons. Right calls follow."""
    places, count = spread_places(subject, lambda: subject.run(subject.problem))
    for at in variants(subject, places):
        layer, label = subject.built(subject.case, subject.problem.weights), f"operator {at + 1} of {count}"
        if message := _after(subject, layer, partial(_without_memory, at), f"once the first call ran out of memory at {label}"):
            return message
    raising_calls = _RAISING_CALLS | (_RAISING_IN_TRAINING if subject.case.training else {})
    for label, raising_call in variants(subject, list(raising_calls.items())):
        if message := _after(subject, subject.layer, raising_call, f"once a call {label}"):
            return message
    return ""


def _after(subject: PropertyContext, layer: Layer, raising_call: RaisingCall, label: str) -> str:
    """Describes what a call that raises has changed: its arguments, a setting, or the result of the next call."""
    call = Call(subject.problem)
    guard = Copies(subject.problem.tensors)
    with GlobalStateGuard() as kept:
        try:
            raising_call(subject, layer, call)
        except Exception:
            if faults.sticky_cuda_error(subject.case.device):
                raise
    with wrong_labelled(f"{label}, the next call"), raised_as_wrong(subject.case.device):
        got = subject.run(subject.problem, layer)
    message = changed(guard) or next(iter(kept.changes), "") or subject.agreement.allclose(subject.whole, got)
    return labelled(message, label)


def _without_memory(at: int, subject: PropertyContext, layer: Layer, call: Call) -> None:
    with AtOperator(at, _run_out_of_memory):
        subject.run_call(call, layer)


def _run_out_of_memory() -> NoReturn:
    raise torch.OutOfMemoryError("raised by pytest-ecornn in place of an operator")


def _raise(tensor: Tensor) -> NoReturn:
    raise RuntimeError("raised by pytest-ecornn in a hook")


def _hook_of_x(subject: PropertyContext, layer: Layer, call: Call) -> None:
    call.x.register_hook(_raise)
    subject.run_call(call, layer)


def _hook_of_saving(subject: PropertyContext, layer: Layer, call: Call) -> None:
    with saved_tensors_hooks(_raise, lambda packed: packed):
        subject.run_call(call, layer)


def _hook_of_reading(subject: PropertyContext, layer: Layer, call: Call) -> None:
    with saved_tensors_hooks(lambda tensor: tensor, _raise):
        subject.run_call(call, layer)


def _state_of_no_type(subject: PropertyContext, layer: Layer, call: Call) -> None:
    call.state = cast(Tensor, object())
    subject.run_call(call, layer)


def _lengths_of_no_type(subject: PropertyContext, layer: Layer, call: Call) -> None:
    call.problem = replace(call.problem, lengths=cast(Tensor, object()))
    subject.run_call(call, layer)


_RAISING_CALLS: dict[str, RaisingCall] = {
    "was given an object() as initial state": _state_of_no_type,
    "was given an object() as lengths": _lengths_of_no_type,
}
_RAISING_IN_TRAINING: dict[str, RaisingCall] = {
    "raised in a hook of x's gradient": _hook_of_x,
    "raised where a tensor is saved, in a hook": _hook_of_saving,
    "raised where a saved tensor is read, in a hook": _hook_of_reading,
}
