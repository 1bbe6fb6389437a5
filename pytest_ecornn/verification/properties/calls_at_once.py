"""Property of calls that two threads make at once, of one layer and of two layers of a case."""

from __future__ import annotations

import warnings
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Layer
from pytest_ecornn.verification.calls import Tensors, copy_tensors
from pytest_ecornn.verification.properties.graph_calls import (
    check_allclose,
    labelled,
    raised_as_wrong,
    variants,
    wrong_labelled,
)
from pytest_ecornn.verification.properties.operators import AtOperator, spread_places
from pytest_ecornn.verification.properties.subject import PropertyContext

_LONGEST_SECONDS = 0.5  # that a call waits for the other thread's, which may wait for it in turn


def calls_at_once(subject: PropertyContext) -> str:
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
            label = f"another thread called {said} at operator {at + 1} of a call"
            with wrong_labelled(label), raised_as_wrong(subject.case.device):
                mine, others = _both(subject, at, problem, layer)
            message = check_allclose(subject, subject.whole, mine) or check_allclose(subject, wanted, others, problem)
            if message:
                return labelled(message, label)
    return ""


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
