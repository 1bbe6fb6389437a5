"""Readings of a GPU through NVML: summed up by their range, and absent rather than fatal where NVML is."""

from __future__ import annotations

import os
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_ecornn.system import child_processes, machine, sensors
from pytest_ecornn.system.gpus.others import GpuOthers
from pytest_ecornn.system.sensors import GpuTelemetry

UUID = "e5b3f7a0-0000-1111-2222-333344445555"


class NVMLError(Exception):
    pass


class FakeNvml(ModuleType):
    """Three readings of one device, known by its UUID."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.asked: list[Any] = []
        self.clocks = [1980, 1200, 1755]
        self.reasons = [0x1, 0x1 | 0x4, 0x4 | 0x20]
        self.knows_uuid = True

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        self.asked.append("init")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.asked.append(uuid)
        if not self.knows_uuid:
            raise NVMLError("not found")
        return "handle"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        self.asked.append(index)
        return "handle"

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        if not self.clocks:
            raise NVMLError("lost")
        return self.clocks.pop(0)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return 412_000

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:  # noqa: N802
        return 54

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:  # noqa: N802
        return self.reasons.pop(0)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=UUID))
    return fake


def test_readings_become_ranges_and_reasons_names(nvml: FakeNvml) -> None:
    found = GpuTelemetry("cuda")
    for _ in range(3):
        found.sample()
    assert nvml.asked == ["init", f"GPU-{UUID}"]
    assert found.summary() == {
        "sm_mhz": [1200.0, 1755.0, 1980.0],
        "power_w": [412.0, 412.0, 412.0],
        "temperature_c": [54.0, 54.0, 54.0],
        "throttled": ["power cap", "thermal slowdown by software"],
    }


def test_a_device_that_nvml_does_not_know_by_its_uuid_is_found_by_number(nvml: FakeNvml) -> None:
    nvml.knows_uuid = False
    GpuTelemetry("cuda:1").sample()
    assert nvml.asked[-1] == 1


def test_readings_that_fail_are_not_asked_for_again(nvml: FakeNvml) -> None:
    found = GpuTelemetry("cuda")
    for _ in range(5):
        found.sample()
    summary: Any = found.summary()
    assert summary["sm_mhz"] == [1200.0, 1755.0, 1980.0]


def test_without_nvml_there_is_nothing_and_the_machine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = GpuTelemetry("cuda")
    found.sample()
    assert found.summary() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    gpu: Any = machine._gpu()
    assert gpu["sensors"] == "NVML not available"


def test_nvml_that_cannot_be_initialised_counts_as_absent(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NVMLError("no driver")

    monkeypatch.setattr(nvml, "nvmlInit", refuse)
    assert sensors.nvml() is None


def test_a_cpu_has_no_sensors(nvml: FakeNvml) -> None:
    found = GpuTelemetry("cpu")
    found.sample()
    assert (found.summary(), nvml.asked) == (None, [])


class TestOthersOfAGpu:
    """The share of a GPU that other processes' kernels took since the beginning."""

    def others(self, nvml: FakeNvml, *samples: tuple[int, int, float]) -> float:
        """Of (process, per cent, seconds since the beginning)."""
        found = GpuOthers("cuda")
        taken = [
            SimpleNamespace(pid=pid, smUtil=used, timeStamp=int((time.time() + after) * 1e6)) for pid, used, after in samples
        ]
        nvml.nvmlDeviceGetProcessUtilization = lambda handle, since: taken
        return found.share()

    def test_our_own_kernels_are_left_out(self, nvml: FakeNvml) -> None:
        assert self.others(nvml, (os.getpid(), 20, 1), (7, 40, 1), (7, 20, 1), (8, 10, 1)) == pytest.approx(0.4)

    def test_in_a_container_the_busiest_is_taken_for_us(self, nvml: FakeNvml) -> None:
        assert self.others(nvml, (1, 70, 1), (2, 30, 1)) == pytest.approx(0.3)
        assert self.others(nvml, (1, 70, 1)) == 0.0

    def test_the_runs_own_process_is_one_of_us(self, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(child_processes, "of_run", {7})
        assert self.others(nvml, (os.getpid(), 20, 1), (7, 40, 1), (8, 10, 1)) == pytest.approx(0.1)
        assert self.others(nvml, (1, 50, 1), (2, 10, 1), (3, 30, 1)) == pytest.approx(0.1)

    def test_what_was_before_is_not_counted(self, nvml: FakeNvml) -> None:
        assert self.others(nvml, (os.getpid(), 20, 1), (7, 40, -5)) == 0.0

    def test_nothing_is_known_where_nvml_refuses_or_there_is_no_gpu(self, nvml: FakeNvml) -> None:
        def refuse(handle: str, since: int) -> None:
            raise NVMLError("no sample")

        nvml.nvmlDeviceGetProcessUtilization = refuse
        assert GpuOthers("cuda").share() == GpuOthers("cpu").share() == 0.0
