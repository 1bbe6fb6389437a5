"""Implementations built for a case and found right on it as called, or the reason why there is none to time.

What a graph of them computes when replayed is not looked at again here: `pytest --ecornn-bench` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from pytest_ecornn.calls import Call, WrongResult
from pytest_ecornn.contract import Case, Unsupported
from pytest_ecornn.discovery import Found, discover
from pytest_ecornn.verification import Candidate, expected, failure_message

WRONG = "wrong"


@cache
def _found() -> dict[str, Found]:
    return discover([])


def prepared(case: Case, names: Sequence[str]) -> dict[str, Candidate | str]:
    """By name a candidate that has passed, WRONG, or why it does not run the case; what fails is printed in full."""
    return {name: _prepared(name, case) for name in names}


def _prepared(name: str, case: Case) -> Candidate | str:
    if name not in _found():
        return "absent from this version"
    kind = _found()[name].kind
    if reason := kind().unsupported(case, torch.device(case.device)):
        return reason
    try:
        candidate = Candidate.build(name, kind, case)
        message = failure_message(name, case, candidate.verify())
    except Unsupported as error:
        return str(error)
    except WrongResult as error:
        return _say_wrong(f"{name} is wrong on {case}: {error}")
    except Exception as error:  # one implementation's failure must not end the others' measurement
        return f"raised {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return _say_wrong(message) if message else candidate


def _say_wrong(message: str) -> str:
    print(message, flush=True)
    return WRONG


def calls_of(candidate: Candidate, count: int) -> list[Callable[[], Any]]:
    """So many calls on inputs of their own: the layer, in training mode with the gradient of every input and weight."""
    problem = replace(expected(candidate.case).problem, weights=candidate.weights)
    inputs = [problem.x, *(torch.randn_like(problem.x) for _ in range(count - 1))]
    return [partial(Call(replace(problem, x=x)).timed, candidate.layer) for x in inputs]
