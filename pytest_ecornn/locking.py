"""A reader-writer lock between the processes of one user on one machine: verification shares it, timing has it alone.

Two files, both under flock(2), which the kernel lets go of when their holder dies. Everyone passes through the turnstile
to get at the lock; a writer stays in it until the lock is free, so readers that come later wait behind the writer.
Where there is no flock (Windows) nothing is locked, and whoever times there must see to the quiet.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

if sys.platform != "win32":
    import fcntl


class MachineLock:
    """Not re-entrant, and for one thread: taking it again while it is held raises RuntimeError instead of waiting forever.

    `path` is created where it does not exist, together with its turnstile beside it, and never removed.
    Both files are opened anew each time, so that a process forked between two uses does not hold the lock with us.
    `waiting` is entered while the lock is waited for.
    """

    def __init__(self, path: Path | None = None):
        self.path = path or _default_path()
        self._turnstile = self.path.with_name(self.path.name + ".turnstile")
        self._is_held = False
        self.waiting: Callable[[], AbstractContextManager[None]] = nullcontext

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Held together with others that share it. Waits for one that has it alone, and for those waiting to."""
        with self._held(alone=False):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Held by nobody else. Waits, without a limit, until those that hold it are done."""
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
                if lock is not None:
                    os.close(lock)
        finally:
            self._is_held = False

    def _acquire(self, alone: bool) -> int | None:
        """The open file that holds the lock: closing it is letting go."""
        if sys.platform == "win32":
            return None
        turnstile = _open(self._turnstile)
        try:
            fcntl.flock(turnstile, fcntl.LOCK_EX)
            lock = _open(self.path)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            except BaseException:
                os.close(lock)
                raise
            return lock
        finally:
            os.close(turnstile)


def _open(path: Path) -> int:
    # The folder is everyone's: a link planted there under our name must not be followed.
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)


def _default_path() -> Path:
    user = os.getuid() if sys.platform != "win32" else "all"
    return Path(tempfile.gettempdir()) / f"pytest-ecornn-{user}.lock"
