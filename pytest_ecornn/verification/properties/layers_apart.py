"""Property: two layers of one case, alive at once, each compute with the weights that they were built on."""

from __future__ import annotations

from dataclasses import replace

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.verification.calls import Tensors
from pytest_ecornn.verification.properties.graph_calls import labelled
from pytest_ecornn.verification.properties.subject import PropertyContext
from pytest_ecornn.verification.verification import ReferenceResult, failed_tensors


def layers_apart(subject: PropertyContext) -> str:
    """The second against the reference, since a layer built on its weights might be given the first one's as well."""
    problem = replace(subject.problem, weights=contents.make_weights(subject.case, "second"))
    second = subject.built(subject.case, problem.weights)
    message = _wrong(subject, problem, subject.run(problem, second))
    if message and not _wrong(subject, subject.problem, subject.whole):  # or it is wrong whatever else is alive
        return f"a second layer on weights of its own: {message.splitlines()[1].strip()}"
    return labelled(subject.repeated(subject.whole, subject.run(subject.problem)), "the first layer, after a second was called")


def _wrong(subject: PropertyContext, problem: Problem, tensors: Tensors) -> str:
    """The tensors that the reference contradicts."""
    verdicts = ReferenceResult(problem).compare(tensors, subject.declared)
    return failed_tensors(subject.case.cell, subject.case, verdicts)
