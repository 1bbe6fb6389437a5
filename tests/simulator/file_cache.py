"""Files kept between runs by what they are made of, safe for several processes; the oldest go where they take too much room."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_ADDED_BETWEEN_LOOKS = 200  # files, after which a process looks again how much room all take
_LONGEST_WRITE_S = 3600  # after which whoever was writing a file has died


class FileCache:
    """A folder of files that never change. most_bytes: of all of them, after which those unused for longest are removed."""

    def __init__(self, folder: Path, most_bytes: int):
        self.folder, self._most_bytes, self._added = folder, most_bytes, 0

    def get(self, name: str) -> Path | None:
        """The file of that name, or None."""
        path = self.folder / name
        try:
            os.utime(path)  # when it was last used
        except OSError:
            return None
        return path

    def put(self, name: str, write: Callable[[Path], object]) -> Path:
        """Adds a file, which `write` writes to a path of its own: another process finds it whole, or not at all."""
        if self._added % _ADDED_BETWEEN_LOOKS == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._prune()
        self._added += 1
        partial = self.folder / f"{name}.{os.getpid()}-{threading.get_ident()}.partial"
        write(partial)
        return partial.replace(self.folder / name)

    def _prune(self) -> None:
        """Removes the oldest files until three quarters of the room are taken. Another process may remove the same."""
        files = []
        for entry in os.scandir(self.folder):
            with suppress(OSError):
                status = entry.stat()
                if not entry.name.endswith(".partial") or time.time() - status.st_mtime > _LONGEST_WRITE_S:
                    files.append((status.st_mtime, status.st_size, entry.path))
        room = sum(size for _, size, _ in files)
        if room <= self._most_bytes:
            return
        for _, size, path in sorted(files):
            with suppress(OSError):
                os.unlink(path)
            room -= size
            if room <= 0.75 * self._most_bytes:
                return
