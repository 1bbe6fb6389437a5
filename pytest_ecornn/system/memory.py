"""The allocator's settings, the same for every implementation, and the peak memory of one call.

By default glibc maps every large array anew and unmaps it when freed, so that an implementation that allocates its output
pays for page faults which one that has its memory already does not: the allocator is timed, not the layer.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

if sys.platform == "win32":
    resource = None
else:
    import resource

# Parameters of mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_PERTURB = -1, -4, -6
_MMAP_MAX, _TRIM_THRESHOLD = 65536, 128 * 1024  # glibc's defaults
_LARGE_BYTES = 2**26  # over the largest that glibc's moving threshold for maps of their own reaches
_MOST_BLOCKS = 16  # of them, until the heap grows
_TRIES = 3
_SMALL_BYTES, _MARKS = 1536, (0x11, 0x22, 0x33)
_PROCESS = Path("/proc/self")
# A control group's limit and use as seen from inside it, versions 2 and 1.
_GROUPS = Path("/sys/fs/cgroup")
_CONTAINER = (
    (_GROUPS / "memory.max", _GROUPS / "memory.current"),
    (_GROUPS / "memory/memory.limit_in_bytes", _GROUPS / "memory/memory.usage_in_bytes"),
)


def configure_malloc() -> str:
    """Tells glibc to keep freed memory and to map nothing anew; returns what reports print. Calling it again changes nothing.

    An allocator put in malloc's place (LD_PRELOAD) heeds none of this and cannot be told from glibc here.
    """
    found = libc()
    if found is None or not (found.mallopt(_M_MMAP_MAX, 0) and found.mallopt(_M_TRIM_THRESHOLD, -1)):
        return "system default: mallopt is not available"
    return "glibc malloc: mmap_max 0, trim_threshold never"


class _Mallinfo(ctypes.Structure):
    """Result of mallinfo2(3). arena: bytes of the heap; hblks: blocks that were mapped one by one."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()  # noqa: SIM905
    )


def allocator_behaviour() -> dict[str, bool] | None:
    """How glibc treats a large block and a small one, as its settings cannot be read; None where it is another allocator."""
    own = libc()
    if own is None or not hasattr(own, "mallinfo2"):
        return None
    own.mallinfo2.restype, own.malloc.restype, own.free.argtypes = _Mallinfo, ctypes.c_void_p, [ctypes.c_void_p]
    own.malloc.argtypes = [ctypes.c_size_t]
    answers = zip(*(_of_large_blocks(own) for _ in range(_TRIES)), strict=True)
    maps, gives_back = (2 * sum(of_tries) > _TRIES for of_tries in answers)  # another thread may have disturbed one
    return {"maps large blocks": maps, "gives freed memory back": gives_back, "fills blocks": _is_filled(own)}


def _of_large_blocks(own: ctypes.CDLL) -> tuple[bool, bool]:
    """Whether glibc maps a large block by itself; else whether it gives it back.

    Another thread may take memory beyond it, or give some back itself.
    """
    before = held = own.mallinfo2()
    blocks = list[int]()
    while len(blocks) < _MOST_BLOCKS and held.arena <= before.arena and held.hblks <= before.hblks:  # in what is free already
        blocks.append(own.malloc(_LARGE_BYTES))
        held = own.mallinfo2()
    own.free(blocks.pop())
    after = own.mallinfo2()
    for block in blocks:
        own.free(block)
    is_mapped = held.hblks > before.hblks
    return is_mapped, not is_mapped and after.arena < held.arena


def set_allocator(old: dict[str, bool]) -> None:
    """Makes glibc behave so again, by its defaults or by what `configure_malloc` sets."""
    own = libc()
    if own is not None:
        own.mallopt(_M_MMAP_MAX, _MMAP_MAX if old["maps large blocks"] else 0)
        own.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD if old["gives freed memory back"] or old["maps large blocks"] else -1)
        own.mallopt(_M_PERTURB, 0)


def _is_filled(own: ctypes.CDLL) -> bool:
    """Whether blocks come with one byte throughout, the same whatever stood there before."""
    found = []
    for mark in _MARKS:
        block = own.malloc(_SMALL_BYTES)
        found.append(set(ctypes.string_at(block, _SMALL_BYTES)))
        ctypes.memset(block, mark, _SMALL_BYTES)
        own.free(block)
    return found[1] == found[2] and len(found[1]) == 1 and 0 not in found[1]


def available_bytes() -> int | None:
    """Bytes still available on this machine, or within the container's limit; None where unknown."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    free = [int(found[1]) * 1024] if found else []
    for most, used in _CONTAINER:
        with contextlib.suppress(OSError, ValueError):  # version 2 says "max" for no limit
            free.append(int(most.read_text()) - int(used.read_text()))
    return min(free, default=None)


def free_bytes(device: str) -> int:
    """Bytes that can still be allocated on the device; 1 GiB where unknown."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    return available_bytes() or 2**30


def set_memory_limit(size: int) -> None:
    """Lets this process and each of its children allocate so many bytes; beyond, allocating fails as if there were no more.

    Writable private memory counts, touched or not, so neither what CUDA reserves of the address space nor shared memory does.
    """
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (size, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def remove_memory_limit() -> None:
    """Takes `set_memory_limit` back."""
    if resource is not None:
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def trim_malloc() -> None:
    """Gives back to the system what malloc holds and nobody uses."""
    found = libc()
    if found is not None:
        found.malloc_trim(0)


def peak_bytes(call: Callable[[], Any], device: str = "cpu") -> int | None:
    """The most memory in use during `call` beyond what was before; None where it is not counted.

    On a CPU of the whole process, resident, in pages, so other threads must be quiet and a few KB mean nothing; on a GPU of
    what torch allocated there. What only a first call allocates counts as well: make one before. In a process where an
    allocation failed before, too little is counted: glibc goes on in another arena then, whose top malloc_trim leaves alone.
    """
    return _cuda_peak_bytes(call, device) if device.startswith("cuda") else _resident_peak_bytes(call)


def _cuda_peak_bytes(call: Callable[[], Any], device: str) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _resident_peak_bytes(call: Callable[[], Any]) -> int | None:
    gc.collect()  # what is freed during the call would hide what it takes
    trim_malloc()
    try:
        before = _status_bytes("VmRSS")
        (_PROCESS / "clear_refs").write_text("5")  # the peak starts again from what is resident now
    except OSError:
        return None
    call()
    peak = _status_bytes("VmHWM")
    return None if before is None or peak is None else max(0, peak - before)


def _status_bytes(name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB", (_PROCESS / "status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def libc() -> ctypes.CDLL | None:
    """glibc, or None where the C library is another one or cannot be reached."""
    try:
        own = ctypes.CDLL(None)
        return own if hasattr(own, "gnu_get_libc_version") and hasattr(own, "mallopt") else None
    except (OSError, TypeError):
        return None
