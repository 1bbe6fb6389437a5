"""Launches by the CUDA driver itself: CuPy's own way to launch takes the host several times as long."""

from __future__ import annotations

import ctypes
import struct
import threading
from functools import cache, lru_cache
from typing import Any, NamedTuple

POINTER, INT32, INT64 = "P", "i", "q"  # what a kernel takes, as `struct` calls it
PORTABLE_CLUSTER = 8  # blocks, which every device that has clusters can run
_NON_PORTABLE_CLUSTERS = 14  # the driver's number of a function's attribute


class Launch(NamedTuple):
    """grid and block: numbers of blocks and of threads in each. shared_bytes: of dynamic shared memory a block."""

    grid: int
    block: int
    shared_bytes: int = 0


class Launcher:
    """Launches one function of a module, which stays loaded as long as `function` (of CuPy) lives.

    types: of the parameters, in order. is_cooperative: all blocks run at once, or the launch fails.
    """

    def __init__(self, function: Any, types: str, is_cooperative: bool):
        self._function, self._pointer = function, function.kernel.ptr
        self._values = struct.Struct(f"@{types}")  # aligned as in a C struct
        ends = [struct.calcsize(f"@{types[: i + 1]}") for i in range(len(types))]
        self._offsets = [end - struct.calcsize(f"@{one}") for end, one in zip(ends, types, strict=True)]
        self._idle: list[tuple[Any, Any]] = []  # room for values, and where each of them lies in it
        self._is_cooperative = is_cooperative

    def __call__(self, launch: Launch, stream: int, values: list[int]) -> None:
        """stream: as torch's `cuda_stream`, of the current device. Raises RuntimeError where the driver refuses."""
        buffer, addresses = room = self._room()
        self._values.pack_into(buffer, 0, *values)
        if self._is_cooperative:
            code = _driver().cuLaunchCooperativeKernel(self._pointer, *_sizes(launch), stream, addresses)
        else:
            code = _driver().cuLaunchKernel(self._pointer, *_sizes(launch), stream, addresses, None)
        self._idle.append(room)  # the driver has copied the values
        if code:
            raise RuntimeError(f"the CUDA driver refused {launch}: {_text(code)}")

    def _room(self) -> tuple[Any, Any]:
        """That nobody else has: another thread may launch meanwhile."""
        try:
            return self._idle.pop()
        except IndexError:
            buffer = ctypes.create_string_buffer(self._values.size)
            start = ctypes.addressof(buffer)
            return buffer, (ctypes.c_void_p * len(self._offsets))(*[start + offset for offset in self._offsets])


@lru_cache(maxsize=4096)
def _sizes(launch: Launch) -> tuple[ctypes.c_uint, ...]:
    """As the driver takes them, of its own types: converted in each launch they would take longer."""
    return tuple(map(ctypes.c_uint, (launch.grid, 1, 1, launch.block, 1, 1, launch.shared_bytes)))


def allow_large_clusters(function: int) -> None:
    """Lets a function have clusters of more than PORTABLE_CLUSTER blocks. Raises RuntimeError where the driver refuses."""
    if code := _driver().cuFuncSetAttribute(function, _NON_PORTABLE_CLUSTERS, 1):
        raise RuntimeError(f"the CUDA driver refused clusters of more than {PORTABLE_CLUSTER} blocks: {_text(code)}")


class _Bound(threading.local):
    """Devices whose contexts were made the thread's."""

    def __init__(self) -> None:
        self.devices: set[int] = set()


_bound = _Bound()


def bind(device: int) -> None:
    """Makes the device's context this thread's, unless that was done before: a thread that torch has not used has none."""
    if device not in _bound.devices:
        from cupy.cuda import runtime

        runtime.setDevice(device)
        _bound.devices.add(device)


@cache
def _driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    sizes = (*(ctypes.c_uint,) * 7,)
    library.cuLaunchKernel.argtypes = (ctypes.c_void_p, *sizes, *(ctypes.c_void_p,) * 3)
    library.cuLaunchCooperativeKernel.argtypes = (ctypes.c_void_p, *sizes, *(ctypes.c_void_p,) * 2)
    library.cuFuncSetAttribute.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    return library


def _text(code: int) -> str:
    found = ctypes.c_char_p()
    _driver().cuGetErrorString(code, ctypes.byref(found))
    return (found.value or b"unknown error").decode()
