"""Correct layers that disturb whatever runs between their calls, once they are likely to be timed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

_VERIFIED_CALLS = 3


class Disturbing(AroundLoop):
    """The plain loop: all is at rest within its calls."""

    _calls = 0

    def disturb(self) -> None:
        raise NotImplementedError

    def rest(self) -> None:
        raise NotImplementedError

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if self._calls > _VERIFIED_CALLS:
            self.rest()
        self._calls += 1
        result = layer(x, state, lengths)
        if self._calls > _VERIFIED_CALLS:
            self.disturb()
        return result
