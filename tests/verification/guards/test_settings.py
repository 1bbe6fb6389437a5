"""Settings that all share: each change is named and put back, what an import brings is no change, and blocks are watched."""

from __future__ import annotations

import gc
import locale
import os
import random
import re
import signal
import subprocess
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ecornn.contract import Case
from pytest_ecornn.measurement.clocks import SettingsClock, WallTimer
from pytest_ecornn.measurement.measurement import Arm
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.selfcheck._correct_layers import Loop
from pytest_ecornn.system import child_processes, memory
from pytest_ecornn.verification.calls import WrongResult
from pytest_ecornn.verification.guards import ambient
from pytest_ecornn.verification.guards.setting import GlobalSetting, cannot_be_put_back
from pytest_ecornn.verification.verification import Candidate

_SLEEP = [sys.executable, "-c", "import time; time.sleep(20)"]


def _everything() -> ambient.GlobalStateGuard:
    return ambient.GlobalStateGuard(ambient.everything())


def _names(kept: ambient.GlobalStateGuard) -> set[str]:
    return {change.partition(": expected")[0] for change in kept.changes}


_held: list[Any] = []  # an inference mode ends with its guard
CHANGES: dict[str, Callable[[], Any]] = {
    "torch's random state": lambda: torch.rand(1),
    "Python's random state": random.random,
    "NumPy's random state": np.random.rand,
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "grad mode": lambda: torch.set_grad_enabled(False),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "flushing of denormals": lambda: torch.set_flush_denormal(True),
    "float32 matmul precision": lambda: torch.set_float32_matmul_precision("high"),
    "torch.backends.cudnn.benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "torch.backends.cudnn.rnn.fp32_precision": lambda: setattr(torch.backends.cudnn.rnn, "fp32_precision", "ieee"),
    "collection of garbage": gc.disable,
    "functions of torch": lambda: setattr(torch.nn.LSTM, "forward", torch.nn.GRU.forward),
    "dispatch keys of this thread": lambda: torch._C._dispatch_tls_set_dispatch_key_included("PythonDispatcher", True),
    "warnings filters": lambda: warnings.simplefilter("ignore"),
    "default device": lambda: torch.set_default_device("meta"),
    "inference mode": lambda: _held.append(torch._C._InferenceMode(True)),  # type: ignore[attr-defined]
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True),
    "hooks of saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(Tensor.clone, Tensor.clone).__enter__(),
    "hooks of all modules": lambda: torch.nn.modules.module.register_module_forward_hook(lambda *_: None),
    "torch.backends.mkldnn.enabled": lambda: torch._C._set_mkldnn_enabled(False),  # type: ignore[attr-defined]
    "flash attention": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "torch.utils.deterministic.fill_uninitialized_memory": lambda: setattr(
        torch.utils.deterministic, "fill_uninitialized_memory", not torch.utils.deterministic.fill_uninitialized_memory
    ),
    "thresholds of the collection of garbage": lambda: gc.set_threshold(1),
    "callbacks of the collection of garbage": lambda: gc.callbacks.append(print),
    "Python's tracers": lambda: threading.setprofile(lambda *_: None),
    "tracing of allocations": tracemalloc.start,
    "Python's switch interval": lambda: sys.setswitchinterval(1e-4),
    "Python's recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
    "timers that send signals": lambda: signal.setitimer(signal.ITIMER_PROF, 100.0),
    "handlers of signals": lambda: signal.signal(signal.SIGRTMIN + 6, signal.SIG_IGN),  # which has no name
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C"),
    "environment variables": lambda: os.environ.update(OMP_NUM_THREADS="7"),
    "environment variables of C": lambda: os.putenv("MKL_NUM_THREADS", "7"),
    "working directory": lambda: os.chdir("/"),
    "mask of new files": lambda: os.umask(0o13),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_put_back(name: str) -> None:
    with _everything() as outer:
        if name == "locale" and locale.setlocale(locale.LC_ALL) == "C":
            locale.setlocale(locale.LC_ALL, "C.UTF-8")
        with _everything() as kept:
            CHANGES[name]()
    assert name in _names(kept)
    assert outer.changes == [] or name == "locale"
    assert kept.lasting == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("functions of torch", "expected nn.LSTM.forward LSTM.forward as before, got GRU.forward"),
        ("modes of functions and operators", r"expected 0 and \d as before, got 0 and \d"),
    ],
)
def test_a_change_is_told_once_in_words(name: str, change: str) -> None:
    with _everything() as kept:
        if name in CHANGES:
            CHANGES[name]()
        else:
            TorchDispatchMode().__enter__()
    (told,) = kept.changes
    assert re.fullmatch(f"{name}: {change}", told)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="has one processor")
def test_processors_of_this_thread_and_of_others_are_put_back() -> None:
    done, started = threading.Event(), threading.Event()
    tasks: list[int] = []

    def wait() -> None:
        tasks.append(threading.get_native_id())
        started.set()
        done.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    one = {min(os.sched_getaffinity(0))}
    with _everything() as outer, _everything() as kept:
        os.sched_setaffinity(0, one)
        os.sched_setaffinity(tasks[0], one)
    done.set()
    thread.join()
    assert {"processors of this thread", "processors and priority of threads"} <= _names(kept)
    assert outer.changes == []


def test_what_an_import_brings_is_no_change(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brings_settings.py").write_text("import os, warnings\nos.environ['SOME_CACHE_DIR'] = '/x'\n")
    (tmp_path / "tunes_openmp.py").write_text("import os\nos.environ['OMP_SCHEDULE'] = 'dynamic'\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module, changes in (("brings_settings", set()), ("tunes_openmp", {"environment variables"})):
        with _everything() as kept:
            __import__(module)
        assert _names(kept) == changes
    monkeypatch.delenv("SOME_CACHE_DIR", raising=False)


def test_a_child_process_is_named_and_ended() -> None:
    with _everything() as outer, _everything() as kept:
        child = subprocess.Popen(_SLEEP)
    assert _names(kept) == {"child processes"}
    assert "time.sleep" in kept.changes[0]
    assert outer.changes == []
    assert child.poll() is not None


def test_a_helper_of_a_library_may_stay_where_it_rests() -> None:
    rests = [sys.executable, "-c", "import time; time.sleep(20) # torch/_inductor/compile_worker"]
    with _everything() as kept:
        child = subprocess.Popen(rests)
    assert kept.changes == []
    assert child.pid in child_processes.living()
    child.kill()
    child.wait()


def test_settings_of_the_allocator_show_by_what_it_does() -> None:
    if memory.allocator_behaviour() is None:
        pytest.skip("is not glibc's of 2.33 or later")
    with _everything() as outer, _everything() as kept:
        memory.libc().mallopt(-6, 0x5A)  # type: ignore[union-attr]
    assert _names(kept) == {"allocator"}
    assert outer.changes == []


def test_what_cannot_be_put_back_is_told() -> None:
    values = iter((1, 2))
    with ambient.GlobalStateGuard([GlobalSetting("priority", lambda: next(values), cannot_be_put_back)]) as kept:
        pass
    assert kept.lasting == kept.changes == ["priority: expected 1 as before, got 2"]


def test_a_clock_sees_what_calls_leave_and_not_what_they_put_back() -> None:
    def puts_back() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(before + 1)
        torch.set_num_threads(before)

    clock = SettingsClock(WallTimer())
    assert clock.time([puts_back] * 3) > 0
    with ambient.GlobalStateGuard(), pytest.raises(WrongResult, match=r"switch interval: expected .* as before"):
        clock.time([lambda: sys.setswitchinterval(1e-4)])


def test_a_layer_cannot_know_where_its_block_ends() -> None:
    case = Case(cell="gru", steps=4, batch=2, hidden_size=8)
    candidate, interval = Candidate.build("loop", Loop, case), sys.getswitchinterval()
    own, number, length = candidate.layer, 0, 0

    def changes_what_is_timed(*given: Any) -> Any:
        nonlocal number
        number += 1
        sys.setswitchinterval(1e-4 if 2 * length < 3 * number < 3 * length else interval)
        return own(*given)

    candidate.layer, arm, clock = changes_what_is_timed, Arm(candidate, InputPool(case)), SettingsClock(WallTimer())
    arm.calibrate(WallTimer())

    def time_blocks() -> None:
        nonlocal number, length
        for _ in range(40):
            number, length = 0, number
            arm.block(clock, is_settled=False)

    with ambient.GlobalStateGuard(), pytest.raises(WrongResult, match=r"switch interval"):
        time_blocks()
