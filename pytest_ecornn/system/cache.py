"""Folder of the files that outlive a run: compiled kernels, and the harness's last score."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """ECORNN_CACHE_DIR, else the user's cache folder."""
    given = os.environ.get("ECORNN_CACHE_DIR")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytest-ecornn"
