"""A thread that is begun when the layer is built keeps a core from whatever is timed beside it."""

from __future__ import annotations

from threading import Thread

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "threads"
CELL = "gru"


def _burn() -> None:
    while True:
        pass


class Cheat(AroundLoop):
    def build(self, case: Case, weights: Weights) -> Layer:
        Thread(target=_burn, daemon=True).start()
        return super().build(case, weights)
