"""A session for one trial: no run, no lock and no report behind it, compared with a plain loop on a machine of any speed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from pytest_ecornn.contract import DTYPES, Case
from pytest_ecornn.measurement.roofline import Ceilings
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.statistics import CONFIDENCE
from pytest_ecornn.run.discovery import ImplementationInfo
from pytest_ecornn.run.options import Options
from pytest_ecornn.run.process import WorkerProcess
from pytest_ecornn.verification.verification import Candidate

TRIAL = Options(profile="quick", budget=0.0, pairs=1)  # of what a trial times, as little as can be


class NoLock:
    """A lock that never waits: of a trial's rows none waits for another."""

    def shared(self) -> AbstractContextManager[None]:
        return nullcontext()

    def exclusive(self) -> AbstractContextManager[None]:
        return nullcontext()

    def beside(self) -> str:
        return ""


@dataclass
class TrialSession:
    """Implements `items.ItemSession`."""

    options: Options = TRIAL
    current: Row | None = None
    lock: NoLock = field(default_factory=NoLock)
    beside: str = ""
    process: WorkerProcess = field(default_factory=WorkerProcess)
    implementations: Mapping[str, ImplementationInfo] = field(default_factory=dict)
    finished: Mapping[tuple[str, str, str], Row] = field(default_factory=dict)
    confidence: float = CONFIDENCE

    def refusal(self, implementation: ImplementationInfo, case: Case, is_drawn: bool = False) -> str:
        """Empty: a trial asks the implementation itself, case by case."""
        return ""

    def locator_options(self, implementation: ImplementationInfo, is_timed: bool) -> str:
        return f" --ecornn-implementations {shlex.quote(implementation.cli_option)}" if implementation.cli_option else ""

    def baselines(self, implementation: ImplementationInfo, case: Case) -> tuple[list[Candidate], list[str]]:
        return [Candidate.build("sequential", ReferenceLoop, case)], []

    def ceilings(self, device: str, is_anew: bool = False) -> Ceilings:
        return Ceilings({1: 1e9}, {1: 1e9}, dict.fromkeys((*DTYPES, "tf32"), 1e9))
