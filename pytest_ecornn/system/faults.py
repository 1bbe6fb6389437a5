"""Faults that an implementation can cause in its process: ending it, exhausting its memory, losing its CUDA context."""

from __future__ import annotations

import signal

import torch

# torch says so for a CPU by a RuntimeError of no class of its own.
_CPU_ALLOCATOR = "DefaultCPUAllocator: "


def exit_reason(status: int | None) -> str:
    """How a process ended that was not told to, by its exit status; a negative one is a signal, None is not known."""
    if status is None:
        return "ended its process"
    if status >= 0:
        return f"exited (status {status})"
    if -status == getattr(signal, "SIGKILL", None):
        return "was killed (signal 9): by hand, or by the system because memory ran out"
    return f"crashed (signal {-status}): {signal.strsignal(-status)}"


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or _CPU_ALLOCATOR in str(error)


def sticky_cuda_error(device: str) -> str:
    """Why nothing more can run on the device in this process: the error that its CUDA context keeps. Empty if it is sound."""
    if not device.startswith("cuda") or not torch.cuda.is_initialized():
        return ""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return str(error).strip().partition("\n")[0]
    return ""


def unrecoverable_reason(error: BaseException | None, device: str) -> str:
    """Describes the damage to this process if later rows may fail through no fault of theirs; empty if there is none."""
    if lost := sticky_cuda_error(device):
        return f"CUDA context is poisoned: {lost}"
    if error is not None and is_out_of_memory(error):
        return f"ran out of memory: {' '.join(str(error).split()) or type(error).__name__}"
    return ""
