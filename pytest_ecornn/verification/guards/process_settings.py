"""Settings that Python, NumPy and Numba, and the system, have once per process or thread.

Random states, tracing, garbage, signals, clocks; environment, processors, priorities, limits, the allocator.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import locale
import operator
import os
import random
import signal
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Iterator
from functools import partial
from time import CLOCK_MONOTONIC, clock_gettime, perf_counter
from typing import Any

import numpy as np

from pytest_ecornn.system import child_processes, memory
from pytest_ecornn.system.own_threads import own_threads
from pytest_ecornn.verification.guards.setting import GlobalSetting, always, cannot_be_put_back, differing_keys

_VARIABLES: dict[Any, Any] = getattr(os.environ, "_data")  # noqa: B009 - as the system has them: to decode each takes 40 us
Thread = tuple[frozenset[int], int, int]  # its processors, niceness and policy

if sys.platform == "win32":
    resource = None
else:
    import resource

# Variables that libraries read to choose threads, kernels and memory: no module sets them by being imported.
_TUNING = (
    "OMP_", "KMP_", "GOMP_", "MKL_", "DNNL_", "ONEDNN_", "OPENBLAS_", "BLIS_", "MALLOC_", "GLIBC_", "PYTORCH_", "ATEN_",
    "TORCH_", "CUDA_", "CUBLAS", "CUDNN_", "NVIDIA_", "NUMBA_", "NCCL_", "LD_",
)  # fmt: skip
_SET_BY_IMPORTS = ("KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK", "CUDA_MODULE_LOADING", "TORCH_CUDA_ARCH_LIST")
# prctl(2): timer slack, whether large pages are off, what this thread may not speculate on.
_PRCTL = {"timer slack": (30, 0), "large pages off": (42, 0), "store bypass": (52, 0), "indirect branches": (52, 1)}
_TIMERS = tuple(getattr(signal, name) for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF") if hasattr(signal, name))


def _numba_threads() -> int | None:
    """0 for the number that Numba begins with: to ask before its threads exist would start them."""
    parallel: Any = sys.modules.get("numba.np.ufunc.parallel")
    if parallel is None or not parallel._is_initialized:
        return 0
    count = int(parallel.get_num_threads())
    return 0 if count == _numba_default() else count


def _numba_default() -> int:
    return int(sys.modules["numba"].config.NUMBA_NUM_THREADS)


def _set_numba_threads(count: int) -> None:
    sys.modules["numba"].set_num_threads(count or _numba_default())


def _set_filters(filters: list[Any]) -> None:
    warnings.resetwarnings()
    warnings.filters[:] = filters  # type: ignore[index]


def _tracers() -> tuple[Any, ...]:
    """Functions that Python calls at each line or call, in this thread and in those to come; tools that monitor, by number."""
    return sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile(), *_tools()


def _tools() -> Iterator[tuple[str, int] | None]:
    """Names and events. Python has none before 3.12."""
    if _monitoring is not None:
        for number in range(_TOOLS):
            name = _monitoring.get_tool(number)
            yield None if name is None else (name, _monitoring.get_events(number))


def _set_tracers(old: tuple[Any, ...]) -> None:
    for write, function in zip((sys.settrace, sys.setprofile, threading.settrace, threading.setprofile), old, strict=False):
        write(function)
    for number, (before, now) in enumerate(zip(old[4:], list(_tools()), strict=True)):
        if now is not None and now != before:
            _monitoring.set_events(number, before[1] if before else 0)
            if before is None:
                _monitoring.free_tool_id(number)


def _traced_frames() -> int:
    """Frames that tracemalloc keeps of each allocation; 0 where it is off."""
    return tracemalloc.get_traceback_limit() if tracemalloc.is_tracing() else 0


def _trace_allocations(frames: int) -> None:
    tracemalloc.stop()
    if frames:
        tracemalloc.start(frames)


def _timers() -> tuple[tuple[bool, float], ...]:
    """Whether each is running, and its interval."""
    return tuple((left > 0, interval) for left, interval in map(signal.getitimer, _TIMERS))


def _stop_timers(old: tuple[tuple[bool, float], ...]) -> None:
    """Stops what was started. What was stopped has no time left that could be told."""
    for timer, (was_running, _) in zip(_TIMERS, old, strict=True):
        if not was_running:
            signal.setitimer(timer, 0)


_SIGNALS = {one.name if isinstance(one, signal.Signals) else f"signal {one}": one for one in signal.valid_signals()}


def _handlers() -> dict[str, Any]:
    return {name: signal.getsignal(number) for name, number in _SIGNALS.items()}


def _set_handlers(old: dict[str, Any]) -> None:
    for name, handler in old.items():
        if handler is not None and signal.getsignal(_SIGNALS[name]) != handler:
            signal.signal(_SIGNALS[name], handler)


def _is_hypothesis(callback: Any) -> bool:
    """Whether it is Hypothesis's, which that adds when its first test runs."""
    return str(getattr(callback, "__module__", "")).startswith("hypothesis.")


def _collector_callbacks() -> list[Any]:
    return [callback for callback in gc.callbacks if not _is_hypothesis(callback)]


def _set_collector_callbacks(old: list[Any]) -> None:
    gc.callbacks[:] = [*filter(_is_hypothesis, gc.callbacks), *old]


def _clocks_agree() -> bool:
    """Whether Python's clock tells what the system's does, which is the same on Linux."""
    start, system, end = perf_counter(), clock_gettime(CLOCK_MONOTONIC), perf_counter()
    return start - _CLOCK_STEP <= system <= end + _CLOCK_STEP


def _same_rounding() -> bool:
    """Whether float64 sums go to the nearest."""
    return _ONE + _LITTLE == _ONE and _ONE - _LITTLE == _ONE and -_ONE - _LITTLE == -_ONE


_ONE, _LITTLE = 1.0, 1e-30
_CLOCK_STEP = 1e-6  # seconds: more than what is lost as a float64
_TOOLS = 6
_monitoring: Any = getattr(sys, "monitoring", None)


def _decoded(variables: dict[Any, Any]) -> dict[str, str]:
    """As `os.environ` has them, which decodes each on every look."""
    return {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}


def _set_environment(encoded: dict[Any, Any]) -> None:
    old = _decoded(encoded)
    for name in os.environ.keys() - old.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in old.items() if os.environ.get(name) != value})


def _is_of_import(before: dict[str, str], after: dict[str, str]) -> bool:
    """Whether only variables were added, none of which libraries are tuned by."""
    new = [name for name in after if name not in before]
    is_added = all(after.get(name) == value for name, value in before.items())
    return is_added and all(name in _SET_BY_IMPORTS or not name.startswith(_TUNING) for name in new)


def _c_environment(libc: ctypes.CDLL) -> dict[str, str]:
    """Returns the environment variables as C's getenv reads them, whoever set them."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
    variables, number = {}, 0
    while entries and (entry := entries[number]) is not None:
        name, _, value = os.fsdecode(entry).partition("=")
        variables[name], number = value, number + 1
    return variables


def _set_c_environment(libc: ctypes.CDLL, old: dict[str, str]) -> None:
    new = _c_environment(libc)
    for name in new.keys() - old.keys():
        os.unsetenv(name)
    for name, value in old.items():
        if new.get(name) != value:
            os.putenv(name, value)


def _scheduling() -> tuple[int, int]:
    return os.sched_getscheduler(0), os.sched_getparam(0).sched_priority


def _set_scheduling(old: tuple[int, int]) -> None:
    os.sched_setscheduler(0, old[0], os.sched_param(old[1]))


def _set_niceness(old: int) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, old)


def _umask() -> int:
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


def _threads() -> dict[int, Thread]:
    """Returns each thread's processors, niceness and policy by the system's thread number."""
    threads = {}
    for name in own_threads():
        with contextlib.suppress(OSError):  # it has ended
            task = int(name)
            processors, niceness = frozenset(os.sched_getaffinity(task)), os.getpriority(os.PRIO_PROCESS, task)
            threads[task] = (processors, niceness, os.sched_getscheduler(task))
    return threads


def _set_threads(old: dict[int, Thread]) -> None:
    for task, (processors, niceness, _) in old.items():
        if task in (new := _threads()) and new[task][:2] != (processors, niceness):
            os.sched_setaffinity(task, processors)
            os.setpriority(os.PRIO_PROCESS, task, niceness)


def _same_of_common(before: dict[int, Thread], after: dict[int, Thread]) -> bool:
    """Whether those that there were before are as they were: others choose for themselves."""
    return all(after.get(task, thread) == thread for task, thread in before.items())


def _tell_of_common(before: dict[int, Thread], after: dict[int, Thread]) -> str:
    changed = [(one, after[task]) for task, one in before.items() if after.get(task, one) != one]
    told = [f"processors {sorted(one[0])}, niceness {one[1]}, policy {one[2]}" for one in changed[0]]
    return f"{told[0]} of {len(changed)} of {len(before)} as before, got {told[1]}"


def _limits() -> dict[str, tuple[int, int]]:
    assert resource is not None
    names = (name for name in dir(resource) if name.startswith("RLIMIT_"))
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def _set_limits(old: dict[str, tuple[int, int]]) -> None:
    assert resource is not None
    for name, limits in old.items():
        if resource.getrlimit(getattr(resource, name)) != limits:
            resource.setrlimit(getattr(resource, name), limits)


def _prctl(libc: ctypes.CDLL) -> dict[str, int]:
    return {name: libc.prctl(setting, which, 0, 0, 0) for name, (setting, which) in _PRCTL.items()}


def _scheduling_settings() -> Iterator[GlobalSetting]:
    """Yields what this system has of a thread's processors and priority."""
    if hasattr(os, "sched_getaffinity"):
        yield GlobalSetting(
            "processors of this thread", lambda: os.sched_getaffinity(0), lambda old: os.sched_setaffinity(0, old)
        )
        yield GlobalSetting("scheduling of this thread", _scheduling, _set_scheduling)
    if hasattr(os, "getpriority"):
        yield GlobalSetting("niceness", lambda: os.getpriority(os.PRIO_PROCESS, 0), _set_niceness)


def slow_settings() -> Iterator[GlobalSetting]:
    """Yields the settings that take longer to read."""
    yield GlobalSetting("handlers of signals", _handlers, _set_handlers, tell=differing_keys)
    yield GlobalSetting("locale", partial(locale.setlocale, locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL))
    yield GlobalSetting("working directory", os.getcwd, os.chdir)
    yield GlobalSetting("mask of new files", _umask, os.umask)
    yield GlobalSetting("allocator", memory.allocator_behaviour, memory.set_allocator, tell=differing_keys)
    yield GlobalSetting(
        "child processes", child_processes.living, child_processes.end_others, child_processes.as_before,
        tell=child_processes.described,
    )  # fmt: skip
    if (libc := memory.libc()) is not None:
        yield GlobalSetting(
            "environment variables of C", partial(_c_environment, libc), partial(_set_c_environment, libc),
            is_of_import=_is_of_import, tell=differing_keys,
        )  # fmt: skip
        yield GlobalSetting("prctl", partial(_prctl, libc), cannot_be_put_back, tell=differing_keys)
    if own_threads():
        yield GlobalSetting("processors and priority of threads", _threads, _set_threads, _same_of_common, tell=_tell_of_common)
    if resource is not None:
        yield GlobalSetting("limits of the process", _limits, _set_limits, tell=differing_keys)


QUICK = (  # which take a few microseconds each to read
    GlobalSetting("Numba's threads", _numba_threads, _set_numba_threads),
    GlobalSetting("collection of garbage", gc.isenabled, lambda is_on: (gc.enable if is_on else gc.disable)()),
    GlobalSetting("thresholds of the collection of garbage", gc.get_threshold, lambda old: gc.set_threshold(*old)),
    GlobalSetting(
        "callbacks of the collection of garbage", _collector_callbacks, _set_collector_callbacks, is_of_import=always
    ),
    GlobalSetting("warnings filters", lambda: list(warnings.filters), _set_filters, is_of_import=always),
    GlobalSetting("NumPy's error state", np.geterr, lambda old: np.seterr(**old)),
    GlobalSetting("NumPy's buffer size", np.getbufsize, np.setbufsize),
    GlobalSetting("rounding of sums to the nearest", _same_rounding, cannot_be_put_back),
    GlobalSetting("Python's tracers", _tracers, _set_tracers),
    GlobalSetting("tracing of allocations", _traced_frames, _trace_allocations),
    GlobalSetting("Python's switch interval", sys.getswitchinterval, sys.setswitchinterval),
    GlobalSetting("Python's recursion limit", sys.getrecursionlimit, sys.setrecursionlimit, is_of_import=operator.lt),
    GlobalSetting("timers that send signals", _timers, _stop_timers),
    *([GlobalSetting("agreement of clocks", _clocks_agree, cannot_be_put_back)] if sys.platform == "linux" else []),
    GlobalSetting(
        "environment variables", _VARIABLES.copy, _set_environment,
        is_of_import=lambda *values: _is_of_import(*map(_decoded, values)),
        tell=lambda *values: differing_keys(*map(_decoded, values)),
    ),
    *_scheduling_settings(),
)  # fmt: skip
RANDOM_STATES = (
    GlobalSetting("Python's random state", random.getstate, random.setstate),
    GlobalSetting("NumPy's random state", partial(np.random.get_state, legacy=True), np.random.set_state),
)
