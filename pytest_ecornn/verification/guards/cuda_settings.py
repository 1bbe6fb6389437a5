"""Settings that a GPU's driver and torch share among all users of the GPU: device, stream, random states, limits, flags."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch

from pytest_ecornn.verification.guards.setting import GlobalSetting, cannot_be_put_back, differing_keys

# CUlimit of cuda.h.
_LIMITS = {
    "stack": 0, "printf": 1, "heap": 2, "depth of synchronisation": 3, "pending launches": 4, "fetches of the L2": 5,
    "persisting L2": 6,
}  # fmt: skip
RANDOM_STATES = GlobalSetting("CUDA's random states", torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all)
_WAITING = 7  # CU_CTX_SCHED_MASK: how the host waits for the GPU


def quick_settings() -> Iterator[GlobalSetting]:
    """Yields the settings that take some microseconds each to read."""
    yield GlobalSetting("current CUDA device", torch.cuda.current_device, torch.cuda.set_device)
    yield GlobalSetting("current CUDA stream", torch.cuda.current_stream, torch.cuda.set_stream)
    yield GlobalSetting("CUDA's synchronisation debug mode", torch.cuda.get_sync_debug_mode, torch.cuda.set_sync_debug_mode)
    if hasattr(torch._C, "_cuda_isHistoryEnabled"):
        yield GlobalSetting("record of CUDA's allocations", torch._C._cuda_isHistoryEnabled, _record_allocations)
    if hasattr(torch._C, "_cuda_tunableop_is_enabled"):
        yield GlobalSetting("tuning of CUDA's products", torch.cuda.tunable.is_enabled, torch.cuda.tunable.enable)
    if (driver := _driver()) is not None:
        yield GlobalSetting("CUDA's limits", partial(_limits, driver), partial(_set_limits, driver), tell=differing_keys)
        yield GlobalSetting("how the host waits for CUDA", partial(_waiting, driver), cannot_be_put_back)


def slow_settings() -> Iterator[GlobalSetting]:
    """Yields the settings that take longer to read."""
    yield GlobalSetting("settings of CUDA's allocator", _allocator, cannot_be_put_back)


def _record_allocations(is_on: bool) -> None:
    torch.cuda.memory._record_memory_history(enabled="all" if is_on else None)


@cache
def _driver() -> Any:
    """CUDA's driver, which torch has loaded already; None where it has another name."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _limits(driver: Any) -> dict[str, int]:
    """Limits of the current context, in bytes or counts, as far as the device has them."""
    found, value = {}, ctypes.c_size_t()
    for name, number in _LIMITS.items():
        if driver.cuCtxGetLimit(ctypes.byref(value), number) == 0:
            found[name] = value.value
    return found


def _set_limits(driver: Any, old: dict[str, int]) -> None:
    new = _limits(driver)
    for name, value in old.items():
        if new.get(name) != value and driver.cuCtxSetLimit(_LIMITS[name], ctypes.c_size_t(value)):
            raise OSError(f"the limit of {name} cannot be set")


def _waiting(driver: Any) -> int | None:
    flags = ctypes.c_uint()
    return None if driver.cuCtxGetFlags(ctypes.byref(flags)) else flags.value & _WAITING


def _allocator() -> str | None:
    """Settings of torch's allocator as text; None where this torch does not report them."""
    settings = torch.cuda.memory._snapshot().get("allocator_settings")
    return None if settings is None else str(settings)
