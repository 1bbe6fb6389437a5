"""Property of calls that raise: out of memory, in a hook, on a wrong argument. The next right call is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pytest_ecornn.contract import Layer
from pytest_ecornn.system import faults
from pytest_ecornn.system.dispatch import DispatchMode
from pytest_ecornn.verification.calls import Call, MutationGuard, WrongResult
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard
from pytest_ecornn.verification.properties.graph_calls import labelled, raised_as_wrong, variants
from pytest_ecornn.verification.properties.subject import PropertyContext, changed

_PLACES = 4  # of a call in which memory runs out
Way = Callable[[PropertyContext, Layer, Call], object]


class OutOfMemory(DispatchMode):
    """Within it, operator number `at` raises torch.OutOfMemoryError in place of running. count: of the operators that came."""

    sees_inside_ops = True

    def __init__(self, at: int = -1) -> None:
        super().__init__()
        self._at, self.count = at, 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: what torch.compile made runs as it was compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.count - 1 == self._at:
            raise torch.OutOfMemoryError("raised by pytest-ecornn in place of an operator")
        return func(*args, **(kwargs or {}))


def call_raises(subject: PropertyContext) -> str:
    """Memory runs out in the first call of new layers; the layer that is there raises for other reasons. Right calls follow."""
    counted = OutOfMemory()
    with counted:
        subject.run(subject.problem)
    step = max(1, counted.count // _PLACES)
    for at in variants(subject, range(subject.case.seed % step, max(1, counted.count), step)):
        layer = subject.built(subject.case, subject.problem.weights)
        if message := _after(subject, layer, partial(_without_memory, at)):
            return labelled(message, f"once the first call ran out of memory at operator {at + 1} of {counted.count}")
    for label, way in variants(subject, list((_WAYS | (_TRAINING_WAYS if subject.case.training else {})).items())):
        if message := _after(subject, subject.layer, way):
            return labelled(message, f"once a call {label}")
    return ""


def _after(subject: PropertyContext, layer: Layer, way: Way) -> str:
    """Describes what a call that raises has changed: its arguments, a setting, or the result of the next call."""
    call = Call(subject.problem)
    guard = MutationGuard(call)
    with GlobalStateGuard() as kept:
        try:
            way(subject, layer, call)
        except Exception:
            if faults.sticky_cuda_error(subject.case.device):
                raise
    if message := changed(guard) or next(iter(kept.changes), ""):
        return message
    try:
        with raised_as_wrong(subject.case.device):
            message = subject.agreement.allclose(subject.whole, subject.run(subject.problem, layer))
    except WrongResult as wrong:
        message = str(wrong)
    return labelled(message, "the next call")


def _without_memory(at: int, subject: PropertyContext, layer: Layer, call: Call) -> None:
    with OutOfMemory(at):
        subject.run_call(call, layer)


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


_WAYS: dict[str, Way] = {
    "was given an object() as initial state": _state_of_no_type,
    "was given an object() as lengths": _lengths_of_no_type,
}
_TRAINING_WAYS: dict[str, Way] = {
    "raised in a hook of x's gradient": _hook_of_x,
    "raised where a tensor is saved, in a hook": _hook_of_saving,
    "raised where a saved tensor is read, in a hook": _hook_of_reading,
}
