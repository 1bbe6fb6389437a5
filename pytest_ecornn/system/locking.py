"""A reader-writer lock between the processes of one user on one machine: verification shares it, timing has it alone.

Two files, both under flock(2), which the kernel lets go of when their holder dies. Everyone passes through the turnstile
to get at the lock; a writer stays in it until the lock is free, so readers that come later wait behind the writer.
Where there is no flock (Windows) nothing is locked, and whoever times there must see to the quiet.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from pytest_ecornn.system import file_locks

_PASSING_SECONDS = 0.01
_QUIET_SECONDS = 0.5  # a process that has just locked has yet to write its name: until then the file names an earlier one
_PURPOSE = "this file gives a timed row the machine to itself, and no implementation is at fault"


class MachineLock:
    """Lock on the machine, not re-entrant and for one thread: acquiring it twice raises RuntimeError instead of a deadlock.

    `path` is created where it does not exist, together with its turnstile beside it, and never removed.
    Both files are opened anew each time, so that a process forked between two uses does not hold the lock with us.
    `waiting` is entered while the lock is waited for. `say` is called with one line when another run's process is waited for,
    once for each such run; `run` is what the processes of one run have in common, the process that began it.
    Raises file_locks.LockError where a path is no file that can be locked.
    """

    def __init__(self, path: Path | None = None):
        self.path = path or default_path()
        self._turnstile = self.path.with_name(self.path.name + ".turnstile")
        self._is_held = False
        self.waiting: Callable[[], AbstractContextManager[None]] = nullcontext
        self.say: Callable[[str], object] = lambda text: None
        self.run = os.getpid()
        self.announced = set[int | None]()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Holds the lock together with others that share it. Waits for an exclusive holder, and for those waiting to be one."""
        with self._held(alone=False):
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Holds the lock exclusively. Waits, without a limit, until those that hold it are done."""
        with self._held(alone=True):
            yield

    @contextmanager
    def _held(self, alone: bool) -> Iterator[None]:
        if self._is_held:
            raise RuntimeError(f"expected a free lock, but this process holds {self.path.name} already: it is not re-entrant")
        self._is_held = True
        try:
            with self.waiting():
                lock = self._acquire(alone)
            try:
                yield
            finally:
                os.close(lock)
        finally:
            self._is_held = False

    def check(self) -> None:
        """Raises file_locks.LockError where the lock could not be had by any row."""
        for path in (self._turnstile, self.path):
            os.close(_open(path))

    def _acquire(self, alone: bool) -> int:
        """The open file that holds the lock: closing it is letting go."""
        turnstile = self._locked(self._turnstile, is_shared=False)
        try:
            return self._locked(self.path, is_shared=not alone)
        finally:
            os.close(turnstile)

    def _locked(self, path: Path, is_shared: bool) -> int:
        """The descriptor of the file, locked by this process."""
        descriptor = _open(path)
        try:
            if not self._is_soon_locked(descriptor, is_shared):
                self._announce(file_locks.owner(descriptor))
                file_locks.wait_for_lock(descriptor, is_shared)
            file_locks.write_owner(descriptor, self.run)
        except file_locks.UnsupportedLock as error:
            os.close(descriptor)
            raise file_locks.LockError(f"{path}: {error}; set TMPDIR to a folder on another one: {_PURPOSE}") from error
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _is_soon_locked(self, descriptor: int, is_shared: bool) -> bool:
        """Whether the file was locked before the wait is worth a line: at once for another process of this run."""
        until = time.monotonic() + _QUIET_SECONDS
        while not file_locks.try_lock(descriptor, is_shared):
            time.sleep(_PASSING_SECONDS)  # most only pass through the turnstile
            if time.monotonic() > until or self._is_own_run(file_locks.owner(descriptor)):
                return file_locks.try_lock(descriptor, is_shared)
        return True

    def _is_own_run(self, owner: tuple[int, int] | None) -> bool:
        return owner is not None and owner[1] == self.run

    def _announce(self, owner: tuple[int, int] | None) -> None:
        """Says whom this process waits for, unless it belongs to the same run, or to another that was named before."""
        run = owner[1] if owner else None
        if self._is_own_run(owner) or run in self.announced:
            return
        self.announced.add(run)
        who = f"process {owner[0]}" if owner else "another process"
        self.say(f"waiting for the machine: {who}, of another run, uses it; rows are timed one at a time ({self.path})")


def _open(path: Path) -> int:
    try:
        return file_locks.open_file(path)
    except file_locks.LockError as error:
        raise file_locks.LockError(f"{error}; remove it, or set TMPDIR to a folder of your own: {_PURPOSE}") from error


def default_path(part: str = "") -> Path:
    """Returns where the user's lock of this machine lies, or that of a part of the machine, as one of its GPUs."""
    user = os.getuid() if sys.platform != "win32" else "all"
    return Path(tempfile.gettempdir()) / f"pytest-ecornn-{user}{part and f'-{part}'}.lock"
