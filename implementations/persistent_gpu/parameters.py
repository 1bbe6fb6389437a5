"""persistent_gpu's parameters as its kernels read them: four of each track, in the order of torch.nn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from pytest_ecornn.implementations._common.recurrent_problem import PARAMETERS
from pytest_ecornn.implementations._cuda.memory import address

PER_PSEUDO_LAYER = len(PARAMETERS)


class ParameterPointers(NamedTuple):
    """Addresses of parameters, 0 for none. tensors: must live as long as the addresses are used."""

    tensors: tuple[Tensor | None, ...]
    addresses: tuple[int, ...]


class FrozenParameters(tuple[Tensor | None, ...]):
    """Parameters that nobody else has, so that their addresses are computed once; their values may change between calls."""

    def __init__(self, parameters: Iterable[Tensor | None]):
        self.laid: dict[tuple[int, int, int], ParameterPointers] = {}
        self.fitting: set[object] = set()  # sizes that they are known to fit
        self._places = [*map(address, self)]

    def where_they_are(self) -> FrozenParameters:
        """These, or the same with other addresses where their memory has been replaced."""
        return self if [*map(address, self)] == self._places else FrozenParameters(self)


def parameter_pointers(weights: Sequence[Tensor | None], first: int, last: int, width: int) -> ParameterPointers:
    """Parameters from `first` to before `last`, without gaps; matrices start at multiples of `width` bytes."""
    fixed, key = weights if isinstance(weights, FrozenParameters) else None, (first, last, width)
    if fixed is not None and key in fixed.laid:
        return fixed.laid[key]
    given = weights[first:last]
    tensors = tuple([None if one is None else aligned(one, width) for one in given])
    found = ParameterPointers(tensors, tuple(map(address, tensors)))
    if fixed is not None and all(one is other for one, other in zip(tensors, given, strict=True)):  # copies go out of date
        fixed.laid[key] = found
    return found


def aligned(one: Tensor, width: int) -> Tensor:
    """The tensor, or a copy without gaps. A matrix starts at a multiple of `width` bytes, which are read at once."""
    one = one.contiguous()
    return one.clone() if one.dim() > 1 and one.data_ptr() % width else one
