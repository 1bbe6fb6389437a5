"""Correct layers that disturb whatever runs between their calls, once they are likely to be timed."""

from __future__ import annotations

from typing import Any

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.selfcheck._correct_layers import VERIFIED_CALLS, AroundLoop


class Disturbing(AroundLoop):
    """The plain loop: all is at rest within its calls."""

    _calls = 0

    def disturb(self) -> None:
        raise NotImplementedError

    def rest(self) -> None:
        raise NotImplementedError

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        if self._calls > VERIFIED_CALLS:
            self.rest()
        self._calls += 1
        result = layer(*arguments)
        if self._calls > VERIFIED_CALLS:
            self.disturb()
        return result
