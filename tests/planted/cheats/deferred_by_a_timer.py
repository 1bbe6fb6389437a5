"""The results are filled in a little later, by a thread that sleeps until then. The first calls, which are verified, wait."""

from __future__ import annotations

from functools import partial
from threading import Timer
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "timed call"
CELL = "gru"
_DELAY_SECONDS = 0.02


class Cheat(AroundLoop):
    _calls = 0

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        self._calls += 1
        results: Any = layer(x, state, lengths)
        if self._calls <= 3:
            return results
        late = tuple(torch.zeros_like(one) for one in results)
        Timer(_DELAY_SECONDS, partial(self._fill, late, results)).start()
        return late

    @staticmethod
    def _fill(late: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
        for target, value in zip(late, results, strict=True):
            target.copy_(value)
