"""The part of a session that its test items use: a whole run's `RunSession` has it, and so has a session for a single trial."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from pytest_ecornn.contract import Case
from pytest_ecornn.measurement.roofline import Ceilings
from pytest_ecornn.results.rows import Row
from pytest_ecornn.run.discovery import ImplementationInfo
from pytest_ecornn.run.options import Options
from pytest_ecornn.run.process import WorkerProcess
from pytest_ecornn.verification.verification import Candidate


class ItemLock(Protocol):
    """The part of `locking.MachineLock` that items use."""

    def shared(self) -> AbstractContextManager[None]: ...
    def exclusive(self) -> AbstractContextManager[None]: ...


class ItemSupport(Protocol):
    """The part of `support.Support` that items use."""

    def refusal(self, implementation: ImplementationInfo, case: Case, is_drawn: bool = False) -> str: ...


class ItemSession(Protocol):
    """Each member as in `session.RunSession`."""

    current: Row | None

    @property
    def options(self) -> Options: ...
    @property
    def lock(self) -> ItemLock: ...
    @property
    def beside(self) -> str: ...
    @property
    def process(self) -> WorkerProcess: ...
    @property
    def support(self) -> ItemSupport: ...
    @property
    def found(self) -> Mapping[str, ImplementationInfo]: ...
    @property
    def finished(self) -> Mapping[tuple[str, str, str], Row]: ...
    @property
    def confidence(self) -> float: ...
    def locator_options(self, found: ImplementationInfo, is_timed: bool) -> str: ...
    def baselines(self, found: ImplementationInfo, case: Case) -> tuple[list[Candidate], list[str]]: ...
    def ceilings(self, device: str) -> Ceilings: ...
    def remeasured_ceilings(self, device: str) -> Ceilings: ...
