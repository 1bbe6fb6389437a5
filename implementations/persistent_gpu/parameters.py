"""persistent_gpu's parameters as its kernels read them: four of each pseudo-layer, in the order of torch.nn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import is_
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
        self.pointers: dict[tuple[int, int, int], ParameterPointers] = {}
        self.fitting: set[object] = set()  # sizes that they are known to fit
        self._places = [*map(address, self)]

    def where_they_are(self) -> FrozenParameters:
        """These, or the same with other addresses where their memory has been replaced."""
        return self if [*map(address, self)] == self._places else FrozenParameters(self)


def parameter_pointers(weights: Sequence[Tensor | None], start: int, stop: int, width: int) -> ParameterPointers:
    """Parameters from `start` to before `stop`, without gaps; matrices start at multiples of `width` bytes."""
    frozen, key = weights if isinstance(weights, FrozenParameters) else None, (start, stop, width)
    if frozen is not None and key in frozen.pointers:
        return frozen.pointers[key]
    originals = weights[start:stop]
    tensors = tuple([None if weight is None else aligned(weight, width) for weight in originals])
    pointers = ParameterPointers(tensors, tuple(map(address, tensors)))
    if frozen is not None and all(map(is_, tensors, originals)):  # copies go out of date
        frozen.pointers[key] = pointers
    return pointers


def aligned(tensor: Tensor, width: int) -> Tensor:
    """The tensor, or a copy without gaps. A matrix starts at a multiple of `width` bytes, which are read at once."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.dim() > 1 and tensor.data_ptr() % width else tensor
