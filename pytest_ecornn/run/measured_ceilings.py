"""What each device of a run reaches at most, measured once a run and shared by its processes through files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from pytest_ecornn.contract import Case
from pytest_ecornn.measurement import roofline
from pytest_ecornn.measurement.roofline import Ceilings
from pytest_ecornn.system.cache import write_cached


class MeasuredCeilings:
    """own: distinguishes devices that processes of one run have under one name, as each has a GPU of its own."""

    def __init__(self, folder: Path, cases: Sequence[Case], own: str = ""):
        self._folder, self._cases, self._own = folder, cases, own

    def of_device(self, device: str) -> Ceilings:
        """The device's, measured by whichever process needs them first. Call it with the device alone."""
        path = self._path(device)
        return _read(path) if path.exists() else self.remeasured(device)

    def remeasured(self, device: str) -> Ceilings:
        """The device's, measured once more: what a row has beaten may have been measured during a disturbance."""
        dtypes = dict.fromkeys(case.dtype for case in self._cases if case.device == device)
        return store(self._path(device), roofline.measure_ceilings(dtypes, device))

    def as_report(self, devices: Iterable[str]) -> dict[str, Any]:
        """The ceilings as a report states them, a GPU's by its name; of several GPUs of one name the highest."""
        ceilings: dict[str, Any] = {}
        for device in devices:
            paths = [*self._folder.glob(f"{_stem(device)}.json"), *self._folder.glob(f"{_stem(device)}@*.json")]
            if paths:
                highest = reduce(Ceilings.elementwise_max, map(_read, paths))
                prefix = "" if device == "cpu" else f"{device} "
                ceilings |= {f"{prefix}{name}": value for name, value in highest.as_dict().items()}
        return ceilings

    def _path(self, device: str) -> Path:
        return self._folder / f"{_stem(device)}{self._own and f'@{self._own}'}.json"


def store(path: Path, measured: Ceilings) -> Ceilings:
    """Stores a device's ceilings in its file, and returns them: the highest of these and of those that it holds."""
    highest = measured.elementwise_max(_read(path)) if path.exists() else measured
    write_cached(path, json.dumps(highest.as_dict()).encode())
    return highest


def _stem(device: str) -> str:
    return f"ceilings-{device.replace(':', '-')}"


def _read(path: Path) -> Ceilings:
    return Ceilings.from_dict(json.loads(path.read_text()))
