"""Launches by the CUDA driver's own functions: calling a kernel of CuPy takes the host several times as long."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from pytest_ecornn.implementations._cuda import driver
from pytest_ecornn.implementations._cuda.host.recorder import current_recorder

POINTER, INT32, INT64 = "P", "i", "q"  # what a kernel takes, as `struct` calls it
PORTABLE_CLUSTER = 8  # blocks, which every device that has clusters can run


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
    all blocks run at once, or the launch fails. library: the driver's.
    """

    def __init__(self, function: int, types: str, is_cooperative: bool, library: Any):
        # Without types of its arguments ctypes passes ints as C's, and converts no pointer: half the host's time.
        self._launch = library["cuLaunchCooperativeKernel" if is_cooperative else "cuLaunchKernel"]
        self._function = ctypes.c_void_p(function)
        self._rest = () if is_cooperative else (None,)  # arguments in another form
        self._types, self._params = types, params_struct(types)
        self._idle: list[tuple[Any, Any, Any]] = []  # a Params, a pointer to it, and a pointer to that
        self._streams: dict[int, Any] = {}

    def __call__(self, launch: Launch, stream: int, values: Sequence[int]) -> None:
        """Launches the function. stream: torch's `cuda_stream`, of the current device. Raises RuntimeError if refused."""
        try:
            room = self._idle.pop()  # which nobody else uses: another thread may launch meanwhile
        except IndexError:
            room = self._more_room()
        self._params.pack_into(room[0], 0, *values)
        grid, block, shared_bytes = launch
        if (handle := self._streams.get(stream)) is None:
            handle = self._streams[stream] = ctypes.c_void_p(stream)
        status = self._launch(self._function, grid, 1, 1, block, 1, 1, shared_bytes, handle, room[2], *self._rest)
        if (recorder := current_recorder()) is not None:
            address = driver.address_of(self._launch)
            recorder.launch(address, self._function.value or 0, not self._rest, launch, self._types, values, room[0].raw)
        self._idle.append(room)  # the driver has copied the values
        if status:
            raise RuntimeError(f"the CUDA driver refused {launch}: {driver.error_text(status)}")

    def _more_room(self) -> tuple[Any, Any, Any]:
        params = ctypes.create_string_buffer(self._params.size)
        address = ctypes.c_void_p(ctypes.addressof(params))
        return params, address, ctypes.c_void_p(ctypes.addressof(address))


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
