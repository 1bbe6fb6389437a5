"""Locks of single GPUs: processes that share one verify side by side, and time one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import torch

from pytest_ecornn.system.locking import MachineLock, default_path


def device_lock(device: str) -> MachineLock:
    """Returns the lock of a GPU, whichever index this process has it under, or that of the machine where there is none."""
    is_gpu = device.startswith("cuda") and torch.cuda.is_available()
    return MachineLock(default_path(f"gpu-{gpu_id(device)}") if is_gpu else None)


def gpu_id(device: str = "cuda") -> str:
    """Returns 8 digits that distinguish GPUs without naming them."""
    return sha256(str(torch.cuda.get_device_properties(device).uuid).encode()).hexdigest()[:8]


class GpuTimingLock(MachineLock):
    """The lock of a process that times on a GPU of its own, on its share of the host's cores.

    It shares the machine with processes on other GPUs, and excludes those that need the machine alone. Only what is exclusive
    on its own GPU waits. The GPU is looked up at the first use, which initialises CUDA.
    """

    @contextmanager
    def shared(self) -> Iterator[None]:
        with super().shared(), self._gpu().shared():
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with super().shared(), self._gpu().exclusive():
            yield

    def _gpu(self) -> MachineLock:
        lock = device_lock("cuda")
        if lock.path == self.path:
            raise RuntimeError("expected a GPU of its own, but this process sees none")
        lock.run, lock.waiting, lock.say, lock.announced = self.run, self.waiting, self.say, self.announced
        return lock
