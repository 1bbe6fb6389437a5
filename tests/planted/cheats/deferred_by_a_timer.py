"""The results are filled in a little later, by a thread that sleeps until then. The first calls, which are verified, wait."""

from __future__ import annotations

from pytest_ecornn.planted._correct import FilledLater

CAUGHT_BY = "timed call"
CELL = "gru"


class Cheat(FilledLater):
    pass
