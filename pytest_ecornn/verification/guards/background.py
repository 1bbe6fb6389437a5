"""Work in other threads of Python that goes on after a call has returned: it is not timed, and disturbs what is.

Threads that no Python code ever ran in (OpenMP's, a driver's) are not seen here: see `ambient.has_busy_threads`.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path
from time import clock_gettime, pthread_getcpuclockid, sleep

from pytest_ecornn.verification.calls import WrongResult

_POLL_SECONDS = 2e-3
_WORKING_SHARE = 0.1  # of the look
_QUIET_LOOKS, _MOST_LOOKS = 20, 5000  # where all cores are taken, a thread may not work for a while


class ThreadGuard:
    """The threads that begin after this object is made."""

    def __init__(self) -> None:
        self._before = set(sys._current_frames())

    def check(self) -> None:
        """Raises WrongResult where one of them uses a processor though this one only waits; ends them before."""
        if self._working():
            self._stop_threads()
            raise WrongResult("expected a call's work done when it returns, but another thread goes on with it")

    def _working(self) -> list[int]:
        """Returns the new threads that use a processor for over `_WORKING_SHARE` of one look."""
        before = {thread: spent for thread in self._new() if (spent := _cpu_seconds(thread)) is not None}
        if not before:
            return []
        sleep(_POLL_SECONDS)
        still = [(thread, spent) for thread in self._new() if thread in before and (spent := _cpu_seconds(thread)) is not None]
        return [thread for thread, spent in still if spent - before[thread] > _WORKING_SHARE * _POLL_SECONDS]

    def _new(self) -> set[int]:
        return set(sys._current_frames()) - self._before

    def _stop_threads(self) -> None:
        """Raises SystemExit in each as soon as it runs Python code, until all have rested for a while."""
        reported, threading.excepthook = threading.excepthook, lambda _: None
        looks = quiet = 0
        while quiet < _QUIET_LOOKS and looks < _MOST_LOOKS:
            working, looks = {*self._working(), *self._runnable()}, looks + 1
            quiet = 0 if working else quiet + 1
            for thread in working:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))
        threading.excepthook = reported

    def _runnable(self) -> list[int]:
        """Returns the new threads that run or wait for a processor, as far as the system reports it."""
        new = self._new()
        return [one.ident for one in threading.enumerate() if one.ident in new and _state(one.native_id) == "R"]


def _state(native_id: int | None) -> str:
    """Linux's letter for a thread's state, R if it runs or would run.

    Empty if there is no such thread, or on another system.
    """
    try:
        return Path(f"/proc/self/task/{native_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _cpu_seconds(thread: int) -> float | None:
    """Seconds of processor time; None where the system does not tell, or the thread has ended."""
    try:
        return clock_gettime(pthread_getcpuclockid(thread))
    except OSError:
        return None
