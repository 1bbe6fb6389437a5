"""Implementations built for a case and found right on it, or the reason why there is none to time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from pytest_ecornn.contract import Case, Unsupported
from pytest_ecornn.run.discovery import ImplementationInfo, discover
from pytest_ecornn.run.items.items import build_and_compare
from pytest_ecornn.system.error_line import error_line
from pytest_ecornn.verification.calls import Call, WrongResult
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.outcomes import SkipCheck
from pytest_ecornn.verification.verification import Candidate, expected, failure_message

WRONG = "wrong"
Build = Callable[[ImplementationInfo, Case], tuple[Candidate, list[TensorCheck]]]


@cache
def _implementations() -> dict[str, ImplementationInfo]:
    return discover([])


def prepare(case: Case, name: str, build: Build = build_and_compare) -> Candidate | str:
    """Returns a candidate that passed, WRONG, or why it does not run the case. Prints a failure in full."""
    if name not in _implementations():
        return "absent from this version"
    try:
        candidate, comparisons = build(_implementations()[name], case)
        message = failure_message(candidate.name, candidate.case, comparisons)
        return _print_failure(message) if message else candidate
    except (SkipCheck, Unsupported) as error:
        return str(error)
    except WrongResult as error:
        return _print_failure(f"{name} is wrong on {case}: {error}")
    except Exception as error:  # one implementation's failure must not end the others' measurement
        return f"raised {error_line(error)}"


def _print_failure(message: str) -> str:
    print(message, flush=True)
    return WRONG


def call_of(candidate: Candidate) -> Callable[[], Any]:
    """One call on the case's own problem: the layer, in training mode with the gradient of every input and weight."""
    return partial(Call(replace(expected(candidate.case).problem, weights=candidate.weights)).forward_backward, candidate.layer)
