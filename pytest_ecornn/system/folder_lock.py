"""One run at a time writes into a report folder: a journal of two runs' rows would be neither's.

The lock file is in the folder for the length of the run.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pytest_ecornn.system import file_locks

NAME = ".ecornn.lock"


class FolderInUse(Exception):
    """One line: the folder, the process that writes there, and what to do."""


class FolderLock:
    """Held from its creation until `release`. Raises FolderInUse, and OSError where the folder cannot be written."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / NAME
        self._descriptor = self._locked()
        file_locks.write_owner(self._descriptor, os.getpid())

    def _locked(self) -> int:
        """The descriptor of the locked file. A file that its last holder has removed meanwhile is opened anew."""
        while True:
            descriptor = file_locks.open_file(self._path)
            try:
                is_free = file_locks.try_lock(descriptor)
            except file_locks.UnsupportedLock:
                return descriptor
            if not is_free:
                process = file_locks.owner(descriptor)
                os.close(descriptor)
                raise FolderInUse(_in_use(self._path.parent, process))
            if self._is_at_path(descriptor):
                return descriptor
            os.close(descriptor)

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(self._path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        with suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)


def _in_use(folder: Path, process: tuple[int, int] | None) -> str:
    who = f"process {process[0]}" if process else "another process"
    return (
        f"{folder}: expected a report folder that no other run writes into, but {who} does; "
        "wait until that run has ended, or choose another --ecornn-report"
    )
