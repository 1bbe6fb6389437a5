"""NVML's readings of a GPU while a row is timed: clock, power, temperature, and reasons for throttling.

A time is only as good as the clocks that it was taken at. Without the package nvidia-ml-py, or where NVML refuses, rows carry
no readings and the machine's fingerprint says so.
"""

from __future__ import annotations

import importlib
from statistics import median
from typing import Any

import torch

# NVML's bits, the same in every version. Bit 0 (idle) is left out: between two blocks a GPU is.
_REASONS = {
    0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "thermal slowdown by software", 0x40: "thermal slowdown by hardware", 0x80: "power brake",
    0x100: "display clocks",
}  # fmt: skip
# Of these, faults of a moment: a block in one is no measure of the others. A power cap is usual at full load; the rest are
# settings, which hold for all blocks alike.
_SLOWDOWNS = 0x8 | 0x20 | 0x40 | 0x80


class GpuTelemetry:
    """Readings of one device, a set for each `sample`; none where there is nothing to read."""

    def __init__(self, device: str):
        self._nvml: Any = nvml() if device.startswith("cuda") else None
        self._handle: Any = None
        self._readings: dict[str, list[float]] = {"sm_mhz": [], "power_w": [], "temperature_c": []}
        self._reasons: set[str] = set()
        self._is_slowed = False  # in the round that goes on
        self.rounds = {"repeated_rounds": 0, "throttled_rounds": 0}
        if self._nvml is not None:
            self._handle = device_handle(self._nvml, device)

    def sample(self) -> None:
        """Takes one set of readings. What fails once is not asked again."""
        if self._handle is None:
            return
        try:
            readings, reasons = _read(self._nvml, self._handle)
        except self._nvml.NVMLError:
            self._handle = None
            return
        for name, value in readings.items():
            self._readings[name].append(value)
        self._reasons.update(name for bit, name in _REASONS.items() if reasons & bit)
        self._is_slowed |= bool(reasons & _SLOWDOWNS)

    def end_round(self, is_repeatable: bool) -> bool:
        """Whether the round counts: unless its samples saw a slowdown and it is repeatable. Counts slowed rounds of both."""
        is_slowed, self._is_slowed = self._is_slowed, False
        if is_slowed:
            self.rounds["repeated_rounds" if is_repeatable else "throttled_rounds"] += 1
        return not (is_slowed and is_repeatable)

    def summary(self) -> dict[str, Any] | None:
        """[least, median, most] of each reading, every reason for throttling that was seen, and the rounds slowed, if any."""
        if not self._readings["sm_mhz"]:
            return None
        found: dict[str, Any] = {name: [min(v), median(v), max(v)] for name, v in self._readings.items()}
        return found | {"throttled": sorted(self._reasons)} | {name: count for name, count in self.rounds.items() if count}


def nvml() -> Any:
    """The module pynvml, initialised; None where it is absent or cannot be."""
    try:
        module = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        module.nvmlInit()
    except module.NVMLError:
        return None
    return module


def device_handle(module: Any, device: str) -> Any:
    """Returns NVML's handle by UUID, since NVML also counts devices hidden from CUDA; else by number; else None."""
    index = torch.device(device).index
    index = torch.cuda.current_device() if index is None else index
    uuid = str(torch.cuda.get_device_properties(index).uuid)
    try:
        return module.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
    except module.NVMLError:
        pass
    try:
        return module.nvmlDeviceGetHandleByIndex(index)
    except module.NVMLError:
        return None


def _read(module: Any, handle: Any) -> tuple[dict[str, float], int]:
    reasons = getattr(module, "nvmlDeviceGetCurrentClocksEventReasons", None)  # its name since CUDA 12.2
    reasons = reasons or module.nvmlDeviceGetCurrentClocksThrottleReasons
    readings = {
        "sm_mhz": float(module.nvmlDeviceGetClockInfo(handle, module.NVML_CLOCK_SM)),
        "power_w": module.nvmlDeviceGetPowerUsage(handle) * 1e-3,
        "temperature_c": float(module.nvmlDeviceGetTemperature(handle, module.NVML_TEMPERATURE_GPU)),
    }
    return readings, int(reasons(handle))
