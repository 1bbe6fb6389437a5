"""Clocks of GPUs are locked for a run where that is allowed, and unlocked at its end, whatever that is; NVML is simulated."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

from tests.helpers import samples
from tests.helpers.foreign import Foreign

NVML = """
import json
from pathlib import Path
NVML_CLOCK_SM, DEFAULT_MHZ = 1, 1410
LOG = Path("nvml.jsonl")
REFUSED = Path("refused")
class NVMLError(Exception):
    pass
def _note(*what):
    with LOG.open("a") as log:
        print(json.dumps(what), file=log)
def nvmlInit():
    pass
def nvmlDeviceGetHandleByUUID(uuid):
    return uuid
def nvmlDeviceGetDefaultApplicationsClock(handle, kind):
    if REFUSED.exists() and REFUSED.read_text() == "default":
        raise NVMLError("Not Supported")
    return DEFAULT_MHZ
def nvmlDeviceSetGpuLockedClocks(handle, low, high):
    if REFUSED.exists() and handle == "GPU-1":
        raise NVMLError("Insufficient Permissions")
    _note("lock", handle, low, high)
def nvmlDeviceResetGpuLockedClocks(handle):
    _note("unlock", handle)
"""
PLUGIN = """
import os
from types import SimpleNamespace
import pytest
import torch
torch.cuda.device_count = lambda: 2
torch.cuda.current_device = lambda: 0
torch.cuda.get_device_properties = lambda index: SimpleNamespace(uuid=str(index))
def pytest_runtest_call():
    if os.path.exists("interrupted"):
        raise KeyboardInterrupt
"""
RUN = ("--ecornn-verify", "--ecornn-only", "sequential", "--ecornn-case", samples.CASE, "-k", "fixed", "-p", "two_gpus")
GPUS = ("--ecornn-device", "cpu", "--ecornn-device", "cuda")


pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's own clocks are left alone")


@pytest.fixture
def foreign(foreign: Foreign) -> Foreign:
    foreign.write("pynvml.py", NVML)
    foreign.write("two_gpus.py", PLUGIN)
    return foreign


def noted(foreign: Foreign) -> list[Any]:
    log = foreign.path / "nvml.jsonl"
    return list(map(json.loads, log.read_text().splitlines())) if log.exists() else []


def clocks(foreign: Foreign) -> str | None:
    state: str | None = foreign.report()["run"]["settings"].get("GPU clocks")
    return state


@pytest.mark.parametrize(("option", "mhz"), [("--ecornn-lock-clocks", 1410), ("--ecornn-lock-clocks=990", 990)])
def test_clocks_are_locked_and_unlocked_at_the_end(option: str, mhz: int, foreign: Foreign) -> None:
    done = foreign.run(*RUN, *GPUS, option, check=0)
    assert noted(foreign) == [["lock", "GPU-0", mhz, mhz], ["unlock", "GPU-0"]]
    assert clocks(foreign) == f"locked at {mhz} MHz"
    assert f"GPU clocks locked at {mhz} MHz" in done.stdout
    assert f"| GPU clocks | locked at {mhz} MHz |" in (foreign.path / "reports/local/report.md").read_text()


def test_the_controller_alone_locks_those_of_all_workers(foreign: Foreign) -> None:
    foreign.run(*RUN, *GPUS, "--ecornn-lock-clocks", "-n", "2", check=0)
    locked = [["lock", f"GPU-{index}", 1410, 1410] for index in range(2)]
    assert noted(foreign) == [*locked, ["unlock", "GPU-1"], ["unlock", "GPU-0"]]


def test_an_interrupted_run_unlocks_them(foreign: Foreign) -> None:
    foreign.write("interrupted", "")
    foreign.run(*RUN, *GPUS, "--ecornn-lock-clocks", check=2)
    assert [step for step, *_ in noted(foreign)] == ["lock", "unlock"]


@pytest.mark.parametrize(
    ("refused", "state"),
    [
        ("lock", "not locked: Insufficient Permissions (lock of cuda:1)"),
        ("default", "not locked: Not Supported (default clock of cuda:0)"),
    ],
)
def test_where_it_is_not_allowed_the_run_goes_on_and_says_so(refused: str, state: str, foreign: Foreign) -> None:
    foreign.write("refused", refused)
    done = foreign.run(*RUN, "--ecornn-device", "cpu", "--ecornn-device", "cuda:0", "--ecornn-device", "cuda:1",
                       "--ecornn-lock-clocks", check=0)  # fmt: skip
    assert clocks(foreign) == state
    assert f"GPU clocks {state}" in done.stdout
    locked, unlocked = ({one for step, one, *_ in noted(foreign) if step == name} for name in ("lock", "unlock"))
    assert locked <= unlocked


def test_without_nvml_it_says_so(foreign: Foreign) -> None:
    foreign.write("pynvml.py", "raise ImportError")
    foreign.run(*RUN, *GPUS, "--ecornn-lock-clocks", check=0)
    assert clocks(foreign) == "not locked: NVML is not available"


def test_without_such_a_device_it_says_so(foreign: Foreign) -> None:
    foreign.write("two_gpus.py", "")
    foreign.run(*RUN, "--ecornn-device", "cpu", "--ecornn-device", "cuda:0", "--ecornn-lock-clocks", check=0)
    assert re.fullmatch(r"not locked: .+ \(default clock of cuda:0\)", clocks(foreign) or "")
    assert noted(foreign) == []


def test_unless_asked_for_no_clock_is_touched(foreign: Foreign) -> None:
    foreign.run(*RUN, *GPUS, check=0)
    assert (noted(foreign), clocks(foreign)) == ([], "not locked")


def test_a_run_on_a_cpu_has_no_gpus_clocks(foreign: Foreign) -> None:
    foreign.run(*RUN, "--ecornn-lock-clocks", check=0)
    assert (noted(foreign), clocks(foreign)) == ([], None)


def test_no_clock_is_under_0(foreign: Foreign) -> None:
    done = foreign.run(*RUN, *GPUS, "--ecornn-lock-clocks=-5", check=4)
    assert "--ecornn-lock-clocks must be a number over 0, got -5" in done.stderr
