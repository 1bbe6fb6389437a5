"""Memory for kernels' results. Three tensors a call from torch's own functions take the host as long as a launch does.

So memory is allocated as in compiled code, where torch has that function, the device is the current one and no mode is active.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.implementations._cuda import driver
from pytest_ecornn.implementations._cuda.host.recorder import current_recorder, is_observed

_POOL_ALIGNMENT, _MAX_POOL_BYTES = 256, 2**24  # as torch aligns memory of its own; of several launches
_GUARDS = torch._C._dynamo.guards
_FAST_EMPTY = {"cpu": getattr(_GUARDS, "_empty_strided_cpu", None), "cuda": getattr(_GUARDS, "_empty_strided_cuda", None)}


def address(tensor: Tensor | None) -> int:
    """The address of a tensor, 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


class EmptyFactory:
    """Allocates uninitialised tensors of one shape, without gaps. device: with its index, but for the CPU."""

    __slots__ = ("_device", "_dtype", "_index", "_quick", "_shape", "_strides")

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device):
        self._shape, self._dtype, self._device, self._index = shape, dtype, device, device.index
        self._strides, self._quick = _strides(shape), _FAST_EMPTY.get(device.type)

    def __call__(self) -> Tensor:
        is_current = self._index is None or torch._C._cuda_getDevice() == self._index
        if self._quick is None or not is_current or is_observed():
            return torch.empty(self._shape, dtype=self._dtype, device=self._device)
        tensor: Tensor = self._quick(self._shape, self._strides, self._dtype)
        if (recorder := current_recorder()) is not None:
            recorder.allocate(tensor)
        return tensor


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocates one uninitialised tensor, without gaps."""
    return EmptyFactory(shape, dtype, device)()


def zeros(size: int, device: torch.device) -> Tensor:
    """Allocates `size` zero bytes, set on torch's current stream, in each replay of a graph too."""
    if device.type != "cuda" or torch._C._cuda_getDevice() != device.index:
        return torch.zeros(size, dtype=torch.uint8, device=device)
    memory = _bytes(size, device)()
    if (recorder := current_recorder()) is not None:
        recorder.clear(driver.address_of(driver.library().cuMemsetD8Async), memory)
    _runtime().memsetAsync(memory.data_ptr(), 0, size, torch._C._cuda_getCurrentRawStream(device.index))
    return memory


class ZeroedPool:
    """Zero bytes for the launches of a pass, set by few memsets. launches: at most so many take some, two of them at once.

    It holds the memory of its last two memsets, so launches on what came before must have been made.
    """

    __slots__ = ("_device", "_free", "_held", "_launches", "_next")

    def __init__(self, launches: int, device: torch.device):
        self._launches, self._device, self._free = launches, device, 0
        self._held: tuple[Tensor, ...] = ()

    def take(self, size: int) -> tuple[int, ...]:
        """The address of `size` zero bytes, () for none. Those for launches to come, of as many each, are set at once."""
        if not size:
            return ()
        size += -size % _POOL_ALIGNMENT
        if size > self._free:
            self._free = size * max(1, min(self._launches, _MAX_POOL_BYTES // size))
            self._held = *self._held[-1:], zeros(self._free, self._device)
            self._next = self._held[-1].data_ptr()
        taken = self._next
        self._next, self._free, self._launches = taken + size, self._free - size, self._launches - 1
        return (taken,)


@lru_cache(maxsize=4096)
def _bytes(size: int, device: torch.device) -> EmptyFactory:
    return EmptyFactory((size,), torch.uint8, device)


@cache
def _runtime() -> Any:
    from cupy_backends.cuda.api import runtime

    return runtime


@lru_cache(maxsize=4096)
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides without gaps; a dimension of no elements counts as one."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides))[: len(shape)]
