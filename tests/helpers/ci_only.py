"""Which tests only CI runs, and which of them a commit's CI runs."""

from __future__ import annotations

import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

IS_CI = bool(os.environ.get("ECORNN_CI"))
_IS_WHOLE = os.environ.get("ECORNN_CI") == "all"


def is_left_out(item: pytest.Item, is_ci: bool = IS_CI, is_whole: bool = _IS_WHOLE) -> bool:
    """Whether this run leaves the test out.

    Of a test's parameters `thinned(n)` leaves one in n, spread over all of them: in CI those of the commit's turn, elsewhere
    always the same.
    """
    if is_whole:
        return False
    thinned = item.get_closest_marker("thinned")
    turn = commit() if is_ci else 0
    if thinned is not None and (_number(item.name) - turn) % thinned.args[0]:
        return True
    return not is_ci and item.get_closest_marker("ci_only") is not None


def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2s(name.encode(), digest_size=4).digest(), "big")


@cache
def commit() -> int:
    """Number of the commit that is tested, made of its hash; 0 where this is no clone."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return 0
    return int(done.stdout[:8], 16) if done.returncode == 0 else 0
