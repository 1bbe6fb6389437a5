"""Writes a report's files: each whole or not at all, so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class ReportError(Exception):
    """One line: which file, and why it cannot be written or read."""


def write(path: Path, text: str) -> None:
    """Replaces `path` by a file that holds `text`. On failure the old file, if any, is left as it was."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                file.write(text.encode("utf-8", "backslashreplace"))
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ReportError(f"{path}: cannot be written ({error.strerror or error}); choose another folder") from error


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"{path}: expected UTF-8 text ({error.reason} at byte {error.start})") from None
