"""Runs a kernel on threads: torch's OpenMP threads, or a pool's where torch has none."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import cast

import torch


@cache
def openmp() -> Callable[..., None] | None:
    """torch's own OpenMP, so that its threads serve both: a second pool would compete with theirs for the same cores."""
    try:
        parallel = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).GOMP_parallel
    except (OSError, AttributeError):
        return None
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None
    return cast(Callable[..., None], parallel)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "ecornn_cpu")


@cache
def c_function(address: int) -> Callable[[int], None]:
    """The C function void(int64*) at an address. Calls release the GIL."""
    return cast(Callable[[int], None], ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address))


def run_on_threads(address: int, integers: array[int], threads: int) -> None:
    """Calls the kernel at `address` once on each thread: which tasks it takes, it finds in `integers`, of 64 bits each."""
    kernel = c_function(address)
    start, _ = integers.buffer_info()
    if threads == 1:
        kernel(start)
    elif parallel := openmp():
        parallel(address, start, threads, 0)
    else:
        list(_pool(threads).map(kernel, [start] * threads))
