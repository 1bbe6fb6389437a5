"""Other processes' use of a GPU while a column is timed, through NVML where it tells."""

from __future__ import annotations

import os
from collections import defaultdict
from math import inf
from statistics import fmean
from time import time
from typing import Any

from pytest_ecornn.system import child_processes, sensors

_US = 1e6
_SECONDS = 0.5  # between two questions


class GpuOthers:
    """Measures from its construction on, or from `seconds_before` that.

    Nothing is known on other devices, without nvidia-ml-py and where NVML refuses.
    """

    def __init__(self, device: str, seconds_before: float = 0.0):
        self._nvml: Any = sensors.nvml() if device.startswith("cuda") else None
        self._handle: Any = sensors.device_handle(self._nvml, device) if self._nvml is not None else None
        self._since = int((time() - seconds_before) * _US)
        self._share, self._asked = 0.0, -inf

    def share(self) -> float:
        """Returns other processes' share of the GPU's time; 0 where unknown. Queries NVML rarely, because it is slow."""
        if self._handle is not None and time() - self._asked > _SECONDS:
            self._share, self._asked = self._read(), time()
        return self._share

    def _read(self) -> float:
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._since)
        except self._nvml.NVMLError:  # also where there was no sample yet
            return 0.0
        used = defaultdict(list)
        for sample in samples:
            if sample.timeStamp > self._since:
                used[sample.pid].append(sample.smUtil / 100)
        return _without_own({pid: fmean(shares) for pid, shares in used.items()})


def _without_own(shares: dict[int, float]) -> float:
    """Ours are the processes that used most where a container gives them other numbers."""
    own = {os.getpid(), *child_processes.of_run}
    known = own & shares.keys() or sorted(shares, key=shares.__getitem__)[-len(own) :]
    return min(1.0, sum(share for pid, share in shares.items() if pid not in known))
