"""Files under flock(2): the kernel releases them when their holder dies, and their text says which process that is.

Where there is no flock (Windows) every lock is granted.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_OWNER_BYTES = 64
_KINDS = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISREG, "a file that this user cannot write"))


class LockError(OSError):
    """One line: which path cannot be locked, and what stands in the way."""


class UnsupportedLock(LockError):
    """The file system has no flock."""


def open_file(path: Path) -> int:
    """A descriptor of the lock file, created where there is none. Raises LockError for anything else at that path."""
    # The folder may be everyone's: a link planted there under our name must not be followed.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        reason = error.strerror or str(error)
        if not os.path.lexists(path):
            raise LockError(f"{path}: cannot be created ({reason})") from error
        raise LockError(f"{path}: expected a file to lock, got {_kind(path)} ({reason})") from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise LockError(f"{path}: expected a file to lock, got {_kind(path)}")


def _kind(path: Path) -> str:
    """Describes the kind of file at the path, in words."""
    mode = os.lstat(path).st_mode
    return next((words for is_kind, words in _KINDS if is_kind(mode)), "something else")


def try_lock(descriptor: int, is_shared: bool = False) -> bool:
    """Locks the file if that needs no waiting. Raises UnsupportedLock."""
    if sys.platform == "win32":
        return True
    try:
        with _unsupported_raised():
            fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _unsupported_raised() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP):
            raise
        raise UnsupportedLock(f"its file system cannot lock files ({error.strerror})") from error


def wait_for_lock(descriptor: int, is_shared: bool = False) -> None:
    """Locks the file when its holders have released it."""
    if sys.platform != "win32":
        with _unsupported_raised():
            fcntl.flock(descriptor, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)


class Ticket:
    """A place in the order of those that wait, as long as this process lives and keeps the queue's file open.

    The place is a byte of the file, locked: that of the time at which it was taken.
    """

    def __init__(self, queue: int):
        self._queue, self._place = queue, time.monotonic_ns()
        while not self._lock_bytes(1, self._place, is_shared=False):  # somebody just looks whether this place is taken
            self._place = time.monotonic_ns()

    def is_first(self) -> bool:
        """Whether nobody that took a place before still waits."""
        is_free = self._lock_bytes(self._place, 0, is_shared=True)
        if is_free and sys.platform != "win32":
            fcntl.lockf(self._queue, fcntl.LOCK_UN, self._place, 0)
        return is_free

    def _lock_bytes(self, count: int, start: int, is_shared: bool) -> bool:
        """Locks bytes of the file if that needs no waiting. Raises UnsupportedLock."""
        if sys.platform != "win32":
            try:
                with _unsupported_raised():
                    fcntl.lockf(self._queue, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB, count, start)
            except (BlockingIOError, PermissionError):
                return False
        return True


def write_owner(descriptor: int, run: int) -> None:
    """Writes down this process and its run, for those who wait. A full disk is no reason to fail."""
    record = f"{os.getpid()} {run}\n".rjust(_OWNER_BYTES)  # of one length and in one write: no reader gets half of it
    with suppress(OSError):
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, record.encode())


def is_alive(process: int) -> bool:
    """Whether there is such a process, as far as this one can see."""
    if sys.platform != "win32":
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
    return True


def owner(descriptor: int) -> tuple[int, int] | None:
    """The process that locked the file last, and its run; None where that is unknown."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    words = os.read(descriptor, _OWNER_BYTES).split()
    is_known = len(words) == 2 and all(word.isdigit() for word in words)
    return (int(words[0]), int(words[1])) if is_known else None
