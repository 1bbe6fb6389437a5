"""Locks the clocks of GPUs for the length of a run, so that all blocks are timed at one rate, where the driver allows it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from pytest_ecornn.system import sensors
from pytest_ecornn.system.error_line import first_line


class ClockLock:
    """The lock of one process. state: in words."""

    def __init__(self) -> None:
        self.state = "not locked"
        self._nvml: Any = None
        self._handles: list[Any] = []

    def lock(self, devices: Sequence[str], mhz: int) -> None:
        """Locks the SM clocks of CUDA devices at a rate, for 0 each at its default; where one is refused, none of them."""
        self._nvml = sensors.nvml()
        if self._nvml is None:
            self.state = "not locked: NVML is not available"
            return
        rates, step = list[int](), ""
        try:
            for device in devices:
                step = f"default clock of {device}"
                handle = sensors.device_handle(self._nvml, device)
                rates.append(mhz or self._nvml.nvmlDeviceGetDefaultApplicationsClock(handle, self._nvml.NVML_CLOCK_SM))
                step = f"lock of {device}"
                self._handles.append(handle)
                self._nvml.nvmlDeviceSetGpuLockedClocks(handle, rates[-1], rates[-1])
            self.state = f"locked at {' and '.join(f'{rate} MHz' for rate in dict.fromkeys(rates))}"
        except (self._nvml.NVMLError, AssertionError, RuntimeError) as error:  # the others are torch's, without such a device
            self.unlock()
            self.state = f"not locked: {first_line(error)} ({step})"

    def unlock(self) -> None:
        """Gives the clocks back to the driver."""
        while self._handles:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlDeviceResetGpuLockedClocks(self._handles.pop())


def every_gpu() -> list[str]:
    """Names the CUDA devices that this process sees."""
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
