"""The folder for what the processes of one run share. What killed runs have left behind, later runs remove.

A folder belongs to a run that is alive as long as its owner file is locked (`file_locks`).
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from pytest_ecornn.system import file_locks

PREFIX = "pytest-ecornn-"
OWNER = "pytest-ecornn-owner.lock"


class Scratch:
    """A new folder below the temporary folder, until `remove`."""

    def __init__(self) -> None:
        remove_leftovers()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        partial = self.path / "partial"
        self._descriptor = file_locks.open_file(partial)
        with suppress(file_locks.UnsupportedLock):  # then no other run can lock it either, and the folder stays
            file_locks.try_lock(self._descriptor)
            partial.rename(self.path / OWNER)  # it appears locked: before that, nobody takes the folder for a leftover

    def remove(self) -> None:
        os.close(self._descriptor)
        shutil.rmtree(self.path, ignore_errors=True)


def remove_leftovers() -> None:
    """Removes this user's folders whose run has died; anything that is not such a folder stays."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if _is_own_folder(folder) and _is_abandoned(folder / OWNER):
                shutil.rmtree(folder, ignore_errors=True)


def _is_own_folder(path: Path) -> bool:
    state = path.lstat()
    return stat.S_ISDIR(state.st_mode) and sys.platform != "win32" and state.st_uid == os.getuid()


def _is_abandoned(file: Path) -> bool:
    """Raises OSError where there is no such file."""
    descriptor = os.open(file, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        return file_locks.try_lock(descriptor)
    finally:
        os.close(descriptor)
