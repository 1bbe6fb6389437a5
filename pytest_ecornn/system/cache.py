"""Folder of the files that outlive a run, as compiled kernels and the harness's last score; files that processes share."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def cache_dir() -> Path:
    """ECORNN_CACHE_DIR, else the user's cache folder."""
    given = os.environ.get("ECORNN_CACHE_DIR")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytest-ecornn"


def write_cached(path: Path, content: bytes) -> Path:
    """Writes a file whole, beside which other processes and threads may write it too, and returns its path. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    partial.write_bytes(content)
    return partial.replace(path)
