"""Implementations built for a case and found right on it as called, or the reason why there is none to time.

What a graph of them computes when replayed is not looked at again here: `pytest --ecornn-bench` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from pytest_ecornn.calls import Call, Tensors, WrongResult, run_guarded
from pytest_ecornn.comparison import Comparison
from pytest_ecornn.contract import Case, Unsupported
from pytest_ecornn.discovery import Found, discover
from pytest_ecornn.verification import Candidate, expected, failure_message
from pytest_ecornn.yardstick import run_counts

WRONG = "wrong"


@cache
def _found() -> dict[str, Found]:
    return discover([])


def prepared(case: Case, names: Sequence[str]) -> dict[str, Candidate | str]:
    """By name a candidate that has passed, WRONG, or why it does not run the case; what fails is printed in full.

    Comparing large gradients is most of the work, so it is done for all candidates at once.
    """
    ran = {name: _build_and_run(name, case) for name in names}
    found: dict[str, Candidate | str] = {name: one for name, one in ran.items() if isinstance(one, str)}
    results = {name: one for name, one in ran.items() if not isinstance(one, str)}
    for name, comparisons in _compare(case, results).items():
        message = wrong(results[name][0], comparisons)
        found[name] = message or results[name][0]
    return {name: found[name] for name in names}


def _build_and_run(name: str, case: Case) -> tuple[Candidate, Tensors] | str:
    if name not in _found():
        return "absent from this version"
    kind = _found()[name].kind
    if reason := kind().unsupported(case, torch.device(case.device)):
        return reason
    try:
        candidate = Candidate.build(name, kind, case)
        return candidate, run_guarded(candidate.layer, replace(expected(case).problem, weights=candidate.weights))
    except Unsupported as error:
        return str(error)
    except WrongResult as error:
        return _say_wrong(f"{name} is wrong on {case}: {error}")
    except Exception as error:  # one implementation's failure must not end the others' measurement
        return f"raised {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def wrong(candidate: Candidate, comparisons: list[Comparison]) -> str:
    """WRONG where a comparison failed, after printing it; empty otherwise."""
    message = failure_message(candidate.name, candidate.case, comparisons)
    return _say_wrong(message) if message else ""


def _say_wrong(message: str) -> str:
    print(message, flush=True)
    return WRONG


def _compare(case: Case, results: dict[str, tuple[Candidate, Tensors]]) -> dict[str, list[Comparison]]:
    """As `Candidate.verify` does, on a thread each."""
    if not results:
        return {}
    wanted = expected(case)
    declared = {candidate.implementation.declared for candidate, _ in results.values()}
    runs = run_counts(wanted.tensors["output"].size)[0]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: wanted.spread(one, runs), declared))  # what the comparisons would all compute
    return {name: wanted.compare(tensors, one.implementation.declared) for name, (one, tensors) in results.items()}


def call_of(candidate: Candidate) -> Callable[[], Any]:
    """One call on the case's own problem: the layer, in training mode with the gradient of every input and weight."""
    return partial(Call(replace(expected(candidate.case).problem, weights=candidate.weights)).timed, candidate.layer)
