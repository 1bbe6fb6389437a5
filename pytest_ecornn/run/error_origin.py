"""Attributes the error that ended a row: to the implementation, its baseline, or the harness itself."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path
from traceback import FrameSummary

from pytest_ecornn.cases.sources.sources import owns
from pytest_ecornn.contract import Case
from pytest_ecornn.run.discovery import ImplementationInfo

_PACKAGE = Path(__file__).parents[1]
_NOT_HARNESS = ("implementations", "selfcheck", "suites")
# Modules of the harness in which a layer's work ends: a gradient, a stream or a result may raise there, outside its code.
_USE_RESULTS = (
    "agreement", "background", "backward_passes", "between_calls", "calls", "clocks", "comparison", "conduct", "graph_calls",
    "graphs", "guards", "interrupted_calls", "measurement", "memory", "relations", "replay", "subject",
)  # fmt: skip


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
