"""What a failure says: whose error ended a row, the implementation's, its baseline's or the harness's; how a case fails again.

A failed case fails by itself, at times only, or after other cases that left a state behind.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import FrameSummary
from typing import TypeAlias

from pytest_ecornn.cases.sources.sources import owns
from pytest_ecornn.contract import Case, Unsupported
from pytest_ecornn.run.discovery import ImplementationInfo, load_copy
from pytest_ecornn.system.interruption import raised_as_error
from pytest_ecornn.verification.calls import WrongResult
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard
from pytest_ecornn.verification.guards.exit_guard import ExitGuard
from pytest_ecornn.verification.guards.tampering import MonkeypatchGuard
from pytest_ecornn.verification.outcomes import RAISED, SkipCheck, skips_as_unsupported

_PACKAGE = Path(__file__).parents[1]
_NOT_HARNESS = ("implementations", "selfcheck", "suites")
# Modules of the harness in which a layer's work ends: a gradient, a stream or a result may raise there, outside its code.
_USE_RESULTS = (
    "agreement", "background", "backward_passes", "between_calls", "calls", "clocks", "comparison", "conduct", "graphs",
    "guards", "interrupted_calls", "measurement", "memory", "relations", "replay", "subject",
)  # fmt: skip
_NUM_RUNS = 4  # the one that failed, and more of the same
_MAX_SECONDS = 10.0
_MAX_CASES = 32
Check: TypeAlias = Callable[[ImplementationInfo, Case], bool]  # whether a case is wrong, by what made it fail


def describe_error(
    implementation: ImplementationInfo, case: Case, error: BaseException, baselines: Iterable[ImplementationInfo] = ()
) -> str:
    """Describes what was raised and where, in one line that names whose error it is."""
    frames = traceback.extract_tb(error.__traceback__)
    for owner in (implementation, *baselines):
        if own := [frame for frame in frames if owns(owner.path, Path(frame.filename))]:
            prefix = "expected a result or Unsupported, got" if owner is implementation else f"its baseline {owner.name} raised"
            return f"{implementation.name} on {case}: {prefix} {_raised(error, own)}"
    harness = [frame for frame in frames if _is_harness(Path(frame.filename))]
    is_ours = is_of_harness(implementation, error, baselines)
    prefix = "not proven, by an error of the harness, not the implementation:" if is_ours else "expected a result of use, got"
    return f"{implementation.name} on {case}: {prefix} {_raised(error, harness)}"


def is_of_harness(
    implementation: ImplementationInfo, error: BaseException, baselines: Iterable[ImplementationInfo] = ()
) -> bool:
    """Whether the error is the harness's own: raised outside implementations' code, and not where their results are used."""
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    if any(owns(owner.path, file) for owner in (implementation, *baselines) for file in files):
        return False
    harness = [file for file in files if _is_harness(file)]
    return bool(harness) and harness[-1].stem not in _USE_RESULTS


def _is_harness(file: Path) -> bool:
    return file.is_relative_to(_PACKAGE) and file.relative_to(_PACKAGE).parts[0] not in _NOT_HARNESS


def _raised(error: BaseException, frames: list[FrameSummary]) -> str:
    """The error's type and text, and the innermost of the places."""
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{where}" + (f": {text}" if text else "")


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
    for cases in ([], *([other] for other in reversed(recent)), recent):
        copy = load_copy(implementation)
        if copy is None or time.monotonic() > end:
            break
        for other in cases:
            _fails(copy, other, is_wrong)
        if _fails(copy, case, is_wrong):
            return cases
    return []


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
