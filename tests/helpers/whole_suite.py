"""What `make test-all` runs and `make test` leaves out: tests marked `test_all`, and the seed of what it draws anew."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter

import pytest

IS_TEST_ALL = bool(os.environ.get("ECORNN_TEST_ALL"))
if IS_TEST_ALL:  # workers of pytest-xdist inherit it
    os.environ.setdefault("ECORNN_TEST_SEED", str(secrets.randbelow(10**6)))
SEED = os.environ.get("ECORNN_TEST_SEED", "0") if IS_TEST_ALL else "0"
_REPEATED = 20  # of so many tests `make test-all` gives one the orders of `make test`, to compare with launches that are kept


def left_out(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """The tests that `make test` leaves out: of a test marked `test_all(keep=n)` all but one in n of its parameters.

    Those that are kept are spread over all of them, and the same in every run. Where a marker has no `keep` none is.
    """
    dropped, sampled = set[pytest.Item](), defaultdict[str, list[tuple[int, int, pytest.Item]]](list)
    for item in items:
        keeps = [marker.kwargs.get("keep", 0) for marker in item.iter_markers("test_all")]
        if 0 in keeps:
            dropped.add(item)
        elif keeps:
            sampled[item.nodeid.partition("[")[0]].append((hash_of(item.name), max(keeps), item))
    for parameters in sampled.values():
        in_order = sorted(parameters, key=itemgetter(0))
        dropped.update(item for place, (_, keep, item) in enumerate(in_order) if place % keep)
    return dropped


def seed_of(test_id: str) -> str:
    """What a test draws its orders of threads from: its id, and in `make test-all` the run's seed too."""
    is_repeated = hash_of(f"{test_id} {SEED}") % _REPEATED == 0
    return test_id if SEED == "0" or is_repeated else f"{test_id} {SEED}"


def hash_of(text: str) -> int:
    """A number of 32 bits, the same in every process."""
    return int.from_bytes(hashlib.blake2s(text.encode(), digest_size=4).digest(), "big")
