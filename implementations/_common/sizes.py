"""Arithmetic on sizes: of one configuration an int each, of many that are compared at once an array each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

import numpy as np

Number = TypeVar("Number", int, float)


def axes(*sizes: Iterable[int]) -> Any:
    """Arrays, each along an axis of its own: broadcast they are all combinations."""
    return np.ix_(*map(tuple, sizes))


def ceil_div(dividend: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return (dividend + (divisor - 1)) // divisor


def where(condition: bool, yes: Number, no: Number) -> Number:
    """One of two values, of an array of conditions an array."""
    return cast(Number, np.where(condition, yes, no)) if is_array(condition) else yes if condition else no


def minimum(first: Number, second: Number) -> Number:
    return cast(Number, np.minimum(first, second)) if is_array(first) or is_array(second) else min(first, second)


def maximum(first: Number, second: Number) -> Number:
    return cast(Number, np.maximum(first, second)) if is_array(first) or is_array(second) else max(first, second)


def is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)
