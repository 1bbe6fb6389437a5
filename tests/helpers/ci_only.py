"""Which tests only CI runs."""

from __future__ import annotations

import os
import zlib

import pytest

IS_CI = bool(os.environ.get("ECORNN_CI"))


def is_left_out(item: pytest.Item) -> bool:
    """Of a test's parameters `thinned(n)` leaves one in n, always the same, spread over all of them."""
    thinned = item.get_closest_marker("thinned")
    is_thinned_out = thinned is not None and zlib.crc32(item.name.encode()) % thinned.args[0] > 0
    return is_thinned_out or item.get_closest_marker("ci_only") is not None
