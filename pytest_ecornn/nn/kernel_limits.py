"""Which kernels a device runs, and sizes and dtypes that persistent_gpu's do not run.

Modules ask before a call, torch.compile once a graph.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.nn.tracing import constant_in_graphs

FUSED = "fused_cpu"
_KERNELS = {"cuda": "persistent_gpu", "cpu": FUSED}


def kernels_on(device: torch.device) -> str | None:
    """The backend of the kernels that "auto" chooses on a device, or None."""
    return _KERNELS.get(device.type)


@lru_cache(maxsize=4096)
def cached_refusal(
    mode: str, batch: int, hidden: int, dtype: torch.dtype, device: torch.device, trains: bool, tf32: bool
) -> str | None:
    shape = kernel.Shape(mode.lower(), 1, batch, hidden, batch_first=False)  # all T below 2**30 are alike
    return kernel.unsupported_reason(shape, kernel.KernelSpec(dtype, device, tf32, saves_for_backward=trains))


@constant_in_graphs
def refusal_of_sizes(*given: Any) -> str | None:
    """Why the kernels do not run calls of those sizes, or None. torch.compile does not look into it."""
    return cached_refusal(*given)


def is_static(size: int) -> bool:
    """Whether a size is one number in the graph that torch.compile makes, and does not vary."""
    from torch.fx.experimental.symbolic_shapes import has_static_value  # which takes 0.3 s to import

    static: bool = has_static_value(size)
    return static


def next_power_of_2(size: int) -> int:
    """The least power of 2 from 8 on that is no smaller."""
    found = 8
    while found < size:
        found *= 2
    return found
