"""The lock of the device that a case runs on: processes that share a GPU verify side by side, and time one at a time."""

from __future__ import annotations

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
