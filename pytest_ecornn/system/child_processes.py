"""Processes that this one has started and that still live: beside a timed row they use what it is to have alone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

_PROCESSES = Path("/proc")
# Parts of the commands of processes that torch and Python start and keep: they may stay where they rest.
_KEPT_BY_LIBRARIES = ("torch/_inductor/compile_worker", "multiprocessing.resource_tracker", "multiprocessing.forkserver")
_WINDOW_SECONDS, _MAX_WINDOWS = 0.03, 100
_RESTING_TICKS = 0  # of the system's clock, mostly of 10 ms
_END_SECONDS = 2.0
_PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)
of_run = set[int]()  # children that the run itself has started: no implementation's doing


def has_children() -> bool:
    """Whether this process has any child, ended and not waited for included, and `of_run`: beside these `living` tells more."""
    if not hasattr(os, "waitid"):
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


@cache
def _adopt_orphans() -> None:
    """Once, on Linux: from now on a process that this one's children leave behind becomes its child, where it is seen."""
    with contextlib.suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def living() -> dict[int, str]:
    """This process's children and theirs, with their commands, save `of_run`; empty where the system does not tell."""
    _adopt_orphans()
    if not _PROCESSES.is_dir() or not has_children():
        return {}
    parents = {pid: parent for pid in _pids() if pid not in of_run and (parent := _parent(pid))}
    found: dict[int, str] = {}
    fresh = {os.getpid()}
    while fresh := {pid for pid, parent in parents.items() if parent in fresh and pid not in found}:
        found |= {pid: _command(pid) for pid in fresh}
    return found


def as_before(before: Collection[int], after: dict[int, str]) -> bool:
    """Whether none is new, but for those of torch and Python that rest."""
    new = {pid: command for pid, command in after.items() if pid not in before}
    is_known = all(any(part in command for part in _KEPT_BY_LIBRARIES) for command in new.values())
    return is_known and (not new or _rest(new))


def described(before: Collection[int], after: dict[int, str]) -> str:
    """The new ones in a message."""
    new = [f"{pid} ({command[:60]})" for pid, command in after.items() if pid not in before]
    return f"none but those as before, got {' and '.join(new[:2])}" + (f" and {len(new) - 2} more" if len(new) > 2 else "")


def end_others(before: Collection[int]) -> None:
    """Kills those that are not among `before`. Raises OSError where one lives on."""
    new = living().keys() - set(before)
    for pid in new:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + _END_SECONDS
    while new & living().keys():
        if time.monotonic() > end:
            raise OSError(f"{len(new)} child processes cannot be ended")
        time.sleep(1e-3)
    for pid in new:
        with contextlib.suppress(ChildProcessError):  # an adopted one has nobody else to wait for it
            os.waitpid(pid, os.WNOHANG)


def _rest(pids: Iterable[int]) -> bool:
    """Whether they stop using processors: what a library starts is busy at first."""
    for _ in range(_MAX_WINDOWS):
        before = sum(map(_ticks, pids))
        time.sleep(_WINDOW_SECONDS)
        if sum(map(_ticks, pids)) - before <= _RESTING_TICKS:
            return True
    return False


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROCESSES) if name.isdigit()]


def _stat(pid: int) -> list[str]:
    """The fields after the command's name; none of a process that has ended."""
    try:
        return (_PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> int:
    """Returns the parent's process id; 0 for a process that has ended."""
    fields = _stat(pid)
    return int(fields[1]) if fields and fields[0] not in "ZX" else 0


def seconds_of_run() -> float:
    """Processor time that `of_run` have used."""
    return sum(map(_ticks, of_run)) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    """Processor time that a process has used."""
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0


def _command(pid: int) -> str:
    try:
        return (_PROCESSES / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
