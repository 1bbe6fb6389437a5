"""How a failed case fails again: by itself, at times only, or after other cases that left a state behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from pytest_ecornn.contract import Case, Unsupported
from pytest_ecornn.run.discovery import ImplementationInfo, load_copy
from pytest_ecornn.system.interruption import raised_as_error
from pytest_ecornn.verification.calls import WrongResult
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard
from pytest_ecornn.verification.guards.exit_guard import ExitGuard
from pytest_ecornn.verification.guards.tampering import MonkeypatchGuard
from pytest_ecornn.verification.outcomes import RAISED, SkipCheck, skips_as_unsupported

_NUM_RUNS = 4  # the one that failed, and more of the same
_MAX_SECONDS = 10.0
_MAX_CASES = 32


Check: TypeAlias = Callable[[ImplementationInfo, Case], bool]  # whether a case is wrong, by what made it fail


def describe_variation(implementation: ImplementationInfo, case: Case, is_wrong: Check) -> str:
    """Says that results vary, where a case that failed is right when it runs again. Empty where it fails each time."""
    num_failed = 1 + sum(_fails(implementation, case, is_wrong) for _ in range(1, _NUM_RUNS))
    return "" if num_failed == _NUM_RUNS else f"results vary: {num_failed} of {_NUM_RUNS} runs failed"


def needed_cases(implementation: ImplementationInfo, case: Case, earlier: Sequence[Case], is_wrong: Check) -> list[Case]:
    """The earlier cases without which a case does not fail in a new process: none, the last such one alone, or all.

    None too where it cannot be known: the module cannot be loaded a second time.
    """
    recent = [other for other in earlier if other != case][-_MAX_CASES:]
    end = time.monotonic() + _MAX_SECONDS
    for cases in _candidates(recent):
        copy = load_copy(implementation)
        if copy is None or time.monotonic() > end:
            break
        for other in cases:
            _fails(copy, other, is_wrong)
        if _fails(copy, case, is_wrong):
            return cases
    return []


def _candidates(cases: list[Case]) -> Iterator[list[Case]]:
    """Nothing, each case alone from the last to the first, and all of them."""
    yield []
    yield from ([case] for case in reversed(cases))
    yield cases


def _fails(implementation: ImplementationInfo, case: Case, is_wrong: Check) -> bool:
    try:
        with rerunning():
            return is_wrong(implementation, case)
    except (SkipCheck, Unsupported):
        return False
    except (WrongResult, *RAISED):
        return True


@contextmanager
def rerunning() -> Iterator[None]:
    """Within it a case runs again: what that changes for all is put back, and judged by nobody."""
    with GlobalStateGuard(), MonkeypatchGuard(), ExitGuard(), raised_as_error(), skips_as_unsupported():
        yield
