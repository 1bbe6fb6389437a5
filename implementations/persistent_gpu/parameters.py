"""persistent_gpu's parameters where its kernels find them: four of each track, in the order of torch.nn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from pytest_ecornn.implementations._common.recurrent_problem import PARAMETERS

PER_TRACK = len(PARAMETERS)


class Laid(NamedTuple):
    """tensors: which live as long as the addresses, 0 for none, are read."""

    tensors: tuple[Tensor | None, ...]
    addresses: tuple[int, ...]


class Fixed(tuple[Tensor | None, ...]):
    """Parameters that nobody else has, so that where they lie is found once; what lies there may change from call to call."""

    def __init__(self, parameters: Iterable[Tensor | None]):
        self.laid: dict[tuple[int, int, int], Laid] = {}
        self.fitting: set[object] = set()  # what they are known to fit


def laid(weights: Sequence[Tensor | None], first: int, last: int, width: int) -> Laid:
    """Those from the first to before the last, without gaps; matrices lie at multiples of `width` bytes."""
    fixed, key = weights if isinstance(weights, Fixed) else None, (first, last, width)
    if fixed is not None and key in fixed.laid:
        return fixed.laid[key]
    given = weights[first:last]
    tensors = tuple([None if one is None else aligned(one, width) for one in given])
    found = Laid(tensors, tuple([0 if one is None else one.data_ptr() for one in tensors]))
    if fixed is not None and all(one is other for one, other in zip(tensors, given, strict=True)):  # copies go out of date
        fixed.laid[key] = found
    return found


def aligned(one: Tensor, width: int) -> Tensor:
    """It, or a copy without gaps; a matrix from an address on that is a multiple of `width` bytes, which are read at once."""
    one = one.contiguous()
    return one.clone() if one.dim() > 1 and one.data_ptr() % width else one
