"""Settings that the system has for a process and its threads: environment, processors, priorities, limits, the allocator."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from pytest_ecornn.system import child_processes, memory
from pytest_ecornn.system.own_threads import own_threads
from pytest_ecornn.verification.guards.setting import GlobalSetting, cannot_be_put_back, differing_keys

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


@cache
def quick_settings() -> tuple[GlobalSetting, ...]:
    """Returns the settings that take a few microseconds each to read."""
    return tuple(_quick_settings())


def _quick_settings() -> Iterator[GlobalSetting]:
    yield GlobalSetting(
        "environment variables", _VARIABLES.copy, _set_environment,
        is_of_import=lambda *values: _is_of_import(*map(_decoded, values)),
        tell=lambda *values: differing_keys(*map(_decoded, values)),
    )  # fmt: skip
    if hasattr(os, "sched_getaffinity"):
        yield GlobalSetting(
            "processors of this thread", lambda: os.sched_getaffinity(0), lambda old: os.sched_setaffinity(0, old)
        )
        yield GlobalSetting("scheduling of this thread", _scheduling, _set_scheduling)
    if hasattr(os, "getpriority"):
        yield GlobalSetting("niceness", lambda: os.getpriority(os.PRIO_PROCESS, 0), _set_niceness)


def slow_settings() -> Iterator[GlobalSetting]:
    """Yields the settings that take longer to read."""
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
    found, number = {}, 0
    while entries and (entry := entries[number]) is not None:
        name, _, value = os.fsdecode(entry).partition("=")
        found[name], number = value, number + 1
    return found


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
    found = {}
    for name in own_threads():
        with contextlib.suppress(OSError):  # it has ended
            task = int(name)
            processors, niceness = frozenset(os.sched_getaffinity(task)), os.getpriority(os.PRIO_PROCESS, task)
            found[task] = (processors, niceness, os.sched_getscheduler(task))
    return found


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
