"""Memory for what kernels write. torch's own functions take the host as long as a launch does, where three are made a call.

So it is asked for as compiled code does, where torch has that function, the device is the current one and no mode looks on.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_GUARDS = torch._C._dynamo.guards
_QUICK = {"cpu": getattr(_GUARDS, "_empty_strided_cpu", None), "cuda": getattr(_GUARDS, "_empty_strided_cuda", None)}


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialised, without gaps. device: with its index, but for the CPU."""
    quick = None if torch._C._len_torch_dispatch_stack() else _QUICK.get(device.type)
    if quick is None or not _is_current(device):
        return torch.empty(shape, dtype=dtype, device=device)
    found: Tensor = quick(shape, _strides(shape), dtype)
    return found


def zeros(size: int, device: torch.device) -> Tensor:
    """Of bytes, set on torch's current stream, in each replay of a graph too."""
    if device.type != "cuda" or not _is_current(device):
        return torch.zeros(size, dtype=torch.uint8, device=device)
    from cupy.cuda import runtime

    found = empty((size,), torch.uint8, device)
    runtime.memsetAsync(found.data_ptr(), 0, size, torch._C._cuda_getCurrentRawStream(device.index))
    return found


def _is_current(device: torch.device) -> bool:
    return device.index is None or torch._C._cuda_getDevice() == device.index


@lru_cache(maxsize=4096)
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without gaps; a dimension of no elements counts as one."""
    found = [1]
    for size in reversed(shape[1:]):
        found.append(found[-1] * max(size, 1))
    return tuple(reversed(found))[: len(shape)]
