"""Locks of single GPUs: processes that share one verify side by side, and time one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import torch

from pytest_ecornn.system.locking import MachineLock, default_path


def _device_path(device: str) -> Path:
    """The lock's file of a GPU, whichever index this process has it under, or of the machine where there is none."""
    is_gpu = device.startswith("cuda") and torch.cuda.is_available()
    return default_path(f"gpu-{gpu_id(device)}" if is_gpu else "")


def gpu_id(device: str = "cuda") -> str:
    """Returns 8 digits that distinguish GPUs without naming them."""
    return sha256(str(torch.cuda.get_device_properties(device).uuid).encode()).hexdigest()[:8]


class GpuTimingLock(MachineLock):
    """The lock of a process that times on a GPU of its own, on its share of the host's cores.

    It shares the machine with processes on other GPUs, and excludes those that need the machine alone. Only what is exclusive
    on its own GPU waits. The GPU is looked up at the first use, which initialises CUDA.
    """

    def _parts(self, alone: bool) -> Sequence[tuple[Path, bool]]:
        return (self.path, False), (self._gpu_path, alone)

    @cached_property
    def _gpu_path(self) -> Path:
        path = _device_path("cuda")
        if path == self.path:
            raise RuntimeError("expected a GPU of its own, but this process sees none")
        return path
