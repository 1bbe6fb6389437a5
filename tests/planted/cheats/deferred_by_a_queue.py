"""A thread does the work after the call has returned. The first calls, which are verified, wait for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "threads"
CELL = "gru"


class Cheat(AroundLoop):
    _calls = 0
    _executor: ThreadPoolExecutor | None = None

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        self._calls += 1
        self._executor = self._executor or ThreadPoolExecutor(1)
        output = x.new_empty(case.steps, case.batch, case.hidden_size)
        final = x.new_empty(1, case.batch, case.hidden_size)
        done = self._executor.submit(self._fill, output, final, layer, x, state, lengths)
        if self._calls <= 3:
            done.result()
        return output, final

    @staticmethod
    def _fill(output: Tensor, final: Tensor, layer: Any, *given: Any) -> None:
        for target, value in zip((output, final), layer(*given), strict=True):
            target.copy_(value)
