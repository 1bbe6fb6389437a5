"""Locks of single GPUs: processes that share one verify side by side, and time one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import torch

from pytest_ecornn.system.locking import MachineLock, default_path


def _gpu_file() -> Path:
    """The lock's file of this process's first GPU, in whose name 8 digits distinguish GPUs without naming them."""
    if not torch.cuda.is_available():
        raise RuntimeError("expected a GPU of its own, but this process sees none")
    uuid = str(torch.cuda.get_device_properties("cuda").uuid)
    return default_path(f"gpu-{sha256(uuid.encode()).hexdigest()[:8]}")


class GpuTimingLock(MachineLock):
    """The lock of a process that times on a GPU of its own, on its share of the host's cores.

    It shares the machine with processes on other GPUs, and excludes those that need the machine alone. Only what is exclusive
    on its own GPU waits. The GPU is looked up at the first use, which initialises CUDA.
    """

    def _parts(self, alone: bool) -> Sequence[tuple[Path, bool]]:
        return (self.path, False), (self._gpu_path, alone)

    @cached_property
    def _gpu_path(self) -> Path:
        return _gpu_file()
