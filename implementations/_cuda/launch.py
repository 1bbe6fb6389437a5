"""Launches by the CUDA driver as CuPy wraps it: calling a kernel of CuPy takes the host several times as long."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

POINTER, INT32, INT64 = "P", "i", "q"  # what a kernel takes, as `struct` calls it
PORTABLE_CLUSTER = 8  # blocks, which every device that has clusters can run
MAX_DYNAMIC_SHARED_BYTES, NON_PORTABLE_CLUSTERS = 8, 14  # the driver's numbers of a function's attributes


class Launch(NamedTuple):
    """Launch configuration: `grid` blocks of `block` threads. shared_bytes: of dynamic shared memory a block."""

    grid: int
    block: int
    shared_bytes: int = 0


def params_struct(types: str) -> struct.Struct:
    """Returns the layout of a kernel's Params: a C struct, whose size is a multiple of its largest field's."""
    largest = max(types, key=struct.calcsize)
    return struct.Struct(f"@{types}0{largest}")


class Launcher:
    """Launches one function of a module that stays loaded.

    function: the driver's handle. types: of the fields of the kernel's Params, its one parameter, in order. is_cooperative:
    all blocks run at once, or the launch fails. driver: CuPy's.
    """

    def __init__(self, function: int, types: str, is_cooperative: bool, driver: Any):
        self._refusal = driver.CUDADriverError
        launch = driver.launchCooperativeKernel if is_cooperative else driver.launchKernel
        self._launch = partial(launch, function)
        self._rest = () if is_cooperative else (0,)  # arguments in another form: none
        self._params = params_struct(types)
        self._idle: list[tuple[Any, Any, int]] = []  # a Params, its address in memory, and the address of that

    def __call__(self, launch: Launch, stream: int, values: Sequence[int]) -> None:
        """Launches the function. stream: torch's `cuda_stream`, of the current device. Raises RuntimeError if refused."""
        room = self._room()
        self._params.pack_into(room[0], 0, *values)
        grid, block, shared_bytes = launch
        try:
            self._launch(grid, 1, 1, block, 1, 1, shared_bytes, stream, room[2], *self._rest)
        except self._refusal as refusal:
            raise RuntimeError(f"the CUDA driver refused {launch}: {refusal}") from refusal
        finally:
            self._idle.append(room)  # the driver has copied the values

    def _room(self) -> tuple[Any, Any, int]:
        """A Params that nobody else uses: another thread may launch meanwhile."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._more_room()

    def _more_room(self) -> tuple[Any, Any, int]:
        params = ctypes.create_string_buffer(self._params.size)
        address = ctypes.c_void_p(ctypes.addressof(params))
        return params, address, ctypes.addressof(address)


class _ThreadContexts(threading.local):
    """Devices whose contexts are bound to the thread."""

    def __init__(self) -> None:
        self.devices: set[int] = set()


_bound = _ThreadContexts()


def bind(device: int) -> None:
    """Binds the device's context to this thread, unless it is bound: a thread that torch has not used has none."""
    if device not in _bound.devices:
        from cupy_backends.cuda.api import runtime

        runtime.setDevice(device)
        _bound.devices.add(device)
