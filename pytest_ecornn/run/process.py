"""The process that runs rows: one for the whole run, or a worker of an isolated run, which may end and be replaced."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NoReturn

from pytest_ecornn.contract import Case
from pytest_ecornn.system.last_words import CrashReport, CurrentWork
from pytest_ecornn.verification.guards.overrides import Overrides

exit_now = os._exit  # as it is now: where rows run, `exit_guard` replaces it
EXIT_STOPPED = 70  # its exit status when it ends by itself: EX_SOFTWARE of sysexits(3)


class UnrecoverableError(BaseException):
    """The row has failed, as the message says, and left its process unfit for more. Hypothesis lets it through."""


class WorkerProcess:
    """State of the process that runs rows, as its session records it.

    fatal: by implementation and case, how processes of this run have ended there, in words.
    cases: by implementation, what it has run here, in order.
    overrides: torch's kernels as they were before a row that put others in their place; None where none has.
    """

    def __init__(self, last_words: CrashReport | None = None, fatal: dict[str, str] | None = None):
        self._last_words = last_words
        self.words = CurrentWork()
        self.fatal = fatal or {}
        self.cases: dict[str, dict[Case, None]] = {}
        self.is_fresh = True
        self.is_spoilt = False
        self.overrides: Overrides | None = None

    @property
    def is_replaceable(self) -> bool:
        return self._last_words is not None

    def set_current_work(self, implementation: str, case: object, beside: Iterable[str] = (), is_timed: bool = False) -> None:
        """Notes whose code runs from now on."""
        if isinstance(case, Case):
            self.cases.setdefault(implementation, {})[case] = None
        self.words = CurrentWork(implementation, str(case), " and ".join(beside), is_timed=is_timed)
        if self._last_words is not None:
            self._last_words.write(self.words)

    def stop(self, end: str = "", is_again: bool = False) -> NoReturn:
        """Ends a worker. The row that it is at is lost, unless it is to be run again."""
        assert self._last_words is not None
        self._last_words.write(replace(self.words, end=end, rerun=is_again))
        sys.stdout.flush()
        sys.stderr.flush()
        exit_now(EXIT_STOPPED)


def worker_input(config: Any) -> dict[str, Any]:
    """Input of a worker of pytest-xdist from the process that started it; empty in that process."""
    values: dict[str, Any] = getattr(config, "workerinput", {})
    return values
