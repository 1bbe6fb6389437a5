"""How the elements of a 16-bit tensor were rounded: once and to nearest, or oftener, or towards zero.

Errors inside of a layer hide under its output's own rounding. But what is exact to float32 and is rounded once, to nearest, is
the rounded reference, bit for bit, but for the few elements that float32's error takes over the middle between two neighbours.
So the share of elements that differ from it shows every other rounding, at any size. Of these as many lie nearer to zero as
farther off; after truncation all lie nearer. The yardstick, which rounds where it is
declared, has shares of its own, which a candidate's may exceed by little.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16)

# A share passes up to FACTOR * yardstick's + FLOOR, and so many standard deviations more, of elements that are independent.
FACTOR, FLOOR, DEVIATIONS = 2.0, 0.03, 6.0
# A bias up to yardstick's + BIAS_FLOOR, and as many deviations.
BIAS_FLOOR = 0.1
# Of elements under this share of their tensor's largest, or subnormal ones, float32 need not know all 16 bits.
COUNTED = 2.0**-7


class Shares(NamedTuple):
    """differing: share of the `counted` elements that are not the rounded reference. bias: the share by which those of them on
    one side of it, nearer to zero or farther off, are more than those on the other.
    """

    differing: float
    bias: float
    counted: int = 1


EXACT, ANY = Shares(0.0, 0.0), Shares(1.0, 1.0)


def is_judged(dtype: str) -> bool:
    return getattr(torch, dtype) in DTYPES


def marks(actual: Tensor, size: Tensor, dtype: torch.dtype | None) -> list[Tensor]:
    """1 where an element counts; 1 where it differs from the rounded reference; the same, but -1 where it is nearer to zero.

    size: of the reference, 0 where an element is of no use. None for a dtype that is not of 16 bits.
    """
    if dtype not in DTYPES or not size.numel():
        return []
    got, wanted = (values.to(dtype).view(torch.int16) for values in (actual.abs(), size))  # integers in the order of the values
    min_magnitude = (size.max() * COUNTED).clamp_(min=torch.finfo(dtype).smallest_normal).to(dtype).view(torch.int16)
    counted = (wanted >= min_magnitude).short()
    side = (got - wanted).sign_().mul_(counted)
    return [counted, side.abs(), side]


def of_counts(counted: float = 0.0, differing: float = 0.0, side: float = 0.0) -> Shares:
    """Computes the shares from the sums of `marks`."""
    return Shares(differing / max(1.0, counted), abs(side) / max(1.0, counted), int(counted))


class Independent(NamedTuple):
    """Numbers of elements: whose rounding, or whose error before it, says nothing of the others'."""

    rounding: int
    error: int


def limits(yardstick: Shares, counted: int, independent: Independent, summed: float) -> tuple[float, float]:
    """The largest shares, differing and bias, that pass, of so many elements.

    summed: the error of float32 sums, in units of the dtype's eps. What chance adds follows Bernstein's inequality.
    """
    share = min(1.0, FACTOR * yardstick.differing + FLOOR + 2 * summed)
    by_rounding, by_error = (max(1, min(counted, number)) for number in independent)
    max_differing = DEVIATIONS * math.sqrt(share * (1 - share) / by_rounding) + DEVIATIONS**2 / 3 / by_rounding
    bias = DEVIATIONS * math.sqrt(share / by_error) + DEVIATIONS**2 / 3 / by_error
    return share + max_differing, yardstick.bias + BIAS_FLOOR + bias
