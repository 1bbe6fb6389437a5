"""Properties of calls in whose middle something happens: they raise, or another thread calls.

They raise out of memory, in a hook, on a wrong argument; the next right call is right. Two threads call one layer at once, and
two layers of a case.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Layer
from pytest_ecornn.system import faults
from pytest_ecornn.system.dispatch import DispatchMode
from pytest_ecornn.verification.calls import Call, Copies, Tensors, copy_tensors
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard
from pytest_ecornn.verification.properties.subject import (
    PropertyContext,
    changed,
    check_allclose,
    raised_as_wrong,
    reject,
    variants,
    wrong_labelled,
)

_PLACES = 4


class AtOperator(DispatchMode):
    """Within it, `action` comes before operator number `at`, of this thread. count: of the operators that came."""

    sees_inside_ops = True

    def __init__(self, at: int = -1, action: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._at, self._action, self.count = at, action, 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: what torch.compile made runs as it was compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.count - 1 == self._at:
            self._action()
        return func(*args, **(kwargs or {}))


def spread_places(subject: PropertyContext, call: Callable[[], object]) -> tuple[range, int]:
    """Numbers of some operators of a call, four or a few more, others by each seed; and how many operators it has."""
    with (counted := AtOperator()):
        call()
    step = max(1, counted.count // _PLACES)
    return range(subject.case.seed % step, max(1, counted.count), step), counted.count


# Prepares a call that will raise; within what it returns, the call is made.
RaisingCall = Callable[[Call], AbstractContextManager[object]]


def call_raises(subject: PropertyContext) -> None:
    """Memory runs out in the first call of new layers; the layer that is there raises for other reasons. Right calls follow."""
    places, count = spread_places(subject, lambda: subject.run(subject.problem))
    for at in variants(subject, places):
        layer, label = subject.built(subject.case, subject.problem.weights), f"operator {at + 1} of {count}"
        _check_after(subject, layer, partial(_out_of_memory, at), f"once the first call ran out of memory at {label}")
    raising_calls = _RAISING_CALLS | (_RAISING_IN_TRAINING if subject.case.training else {})
    for label, raising_call in variants(subject, list(raising_calls.items())):
        _check_after(subject, subject.layer, raising_call, f"once a call {label}")


def _check_after(subject: PropertyContext, layer: Layer, raising_call: RaisingCall, label: str) -> None:
    """Rejects what a call that raises has changed: its arguments, a setting, or the result of the next call."""
    call = Call(subject.problem)
    guard = Copies(subject.problem.tensors)
    with GlobalStateGuard() as settings:
        try:
            with raising_call(call):
                subject.run_call(call, layer)
        except Exception:
            if faults.sticky_cuda_error(subject.case.device):
                raise
    with wrong_labelled(f"{label}, the next call"), raised_as_wrong(subject.case.device):
        got = subject.run(subject.problem, layer)
    reject(changed(guard) or next(iter(settings.changes), "") or subject.agreement.allclose(subject.whole, got), label)


def _out_of_memory(at: int, call: Call) -> AtOperator:
    def run_out() -> NoReturn:
        raise torch.OutOfMemoryError("raised by pytest-ecornn in place of an operator")

    return AtOperator(at, run_out)


def _raise(tensor: Tensor) -> NoReturn:
    raise RuntimeError("raised by pytest-ecornn in a hook")


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _hook_of_x(call: Call) -> AbstractContextManager[object]:
    return nullcontext(call.x.register_hook(_raise))


def _state_of_no_type(call: Call) -> AbstractContextManager[object]:
    call.state = cast(Tensor, object())
    return nullcontext()


def _lengths_of_no_type(call: Call) -> AbstractContextManager[object]:
    call.problem = replace(call.problem, lengths=cast(Tensor, object()))
    return nullcontext()


_RAISING_CALLS: dict[str, RaisingCall] = {
    "was given an object() as initial state": _state_of_no_type,
    "was given an object() as lengths": _lengths_of_no_type,
}
_RAISING_IN_TRAINING: dict[str, RaisingCall] = {
    "raised in a hook of x's gradient": _hook_of_x,
    "raised where a tensor is saved, in a hook": lambda call: saved_tensors_hooks(_raise, _unchanged),
    "raised where a saved tensor is read, in a hook": lambda call: saved_tensors_hooks(_unchanged, _raise),
}

_LONGEST_SECONDS = 0.5  # that a call waits for the other thread's, which may wait for it in turn


def calls_at_once(subject: PropertyContext) -> None:
    """At an operator of one call another thread makes a whole one: of the same layer, or of another of the case.

    A layer may let one thread wait for another. On a GPU both use the current stream.
    """
    weights = contents.make_weights(subject.case, "second")
    other = replace(subject.other_problem, weights=weights)
    is_cpu = subject.case.device == "cpu"  # a GPU's backward passes have one thread, which must not wait
    places, _ = spread_places(subject, lambda: (subject.run if is_cpu else subject.forward)(subject.problem))
    for said, problem, layer in (
        ("the same layer", subject.other_problem, subject.layer),
        ("another layer of the case", other, subject.built(subject.case, weights)),
    ):
        wanted = copy_tensors(subject.run(problem, layer))
        for at in variants(subject, places):
            with wrong_labelled(f"another thread called {said} at operator {at + 1} of a call"):
                with raised_as_wrong(subject.case.device):
                    mine, others = _both(subject, at, problem, layer)
                check_allclose(subject, subject.whole, mine)
                check_allclose(subject, wanted, others, problem=problem)


def _both(subject: PropertyContext, at: int, problem: Problem, layer: Layer) -> tuple[Tensors, Tensors]:
    """Results of the subject's own call, and of the other thread's call at its operator number `at`.

    Warnings are ignored: libraries warn in a thread that is new to them, and are asked for results alone.
    """
    with warnings.catch_warnings(), ThreadPoolExecutor(1) as thread:
        warnings.simplefilter("ignore")
        made: list[Future[Tensors]] = []

        def call() -> None:
            made.append(thread.submit(subject.run, problem, layer))
            wait(made, _LONGEST_SECONDS)

        with AtOperator(at, call):
            mine = subject.run(subject.problem)
        if not made:  # the call has no such operator
            call()
        return mine, made[0].result()
