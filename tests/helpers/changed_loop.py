"""The plain loop, changed: layers that are planted for what must see them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.reference.loop import ReferenceLoop

Wrap = Callable[[Any, Case, Weights], Layer]


def planted(wrap: Wrap) -> type[ReferenceLoop]:
    """The plain loop, whose layers are what `wrap` makes of them, their case and weights."""

    class Planted(ReferenceLoop):
        def build(self, case: Case, weights: Weights) -> Layer:
            return wrap(super().build(case, weights), case, weights)

    return Planted


def of_calls(call: Callable[..., Any]) -> Wrap:
    """A change of each call alone, which is given the layer first."""
    return lambda layer, case, weights: partial(call, layer)
