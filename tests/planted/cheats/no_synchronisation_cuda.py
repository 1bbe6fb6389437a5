"""A thread launches the work after the call has returned; on a CPU: deferred_by_a_queue."""

from __future__ import annotations

from pytest_ecornn.planted._correct import FilledLater

CAUGHT_BY = "timed call"
CELL = "gru"
DEVICE = "cuda"


class Cheat(FilledLater):
    pass
