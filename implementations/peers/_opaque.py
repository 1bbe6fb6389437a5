"""accelerated-scan's own scans, called outside of what torch.compile traces: one is a C++ extension, the other a launch of
Triton with an option that it does not take. Importing this module imports torch's compiler, which takes a second or two.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pytest_ecornn.implementations.peers._peer import import_quietly


def _call(kept: Tensor, taken: Tensor, kernel: str) -> Tensor:
    """h[t] = kept[t] h[t-1] + taken[t] of contiguous [B, C, T] by the package's module of that name."""
    found: Tensor = import_quietly(f"accelerated_scan.{kernel}").scan(kept, taken)
    return found


accelerated_scan: Callable[[Tensor, Tensor, str], Tensor] = torch.compiler.disable(_call)
