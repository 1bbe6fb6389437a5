"""Launches that run side by side, as they need not wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from pytest_ecornn.implementations._cuda.host.recorder import current_recorder

_POOL_STREAMS = 32  # of torch's pool, after which it hands out the same again


class _SideStream:
    """A stream beside another, of torch's pool, which may hand it out to others, too.

    begin, end: events that are recorded anew in each use. To create events takes the host longer than a launch.
    """

    def __init__(self, device: torch.device, beside: int):
        self.stream, self.begin, self.end = torch.cuda.Stream(device), torch.cuda.Event(), torch.cuda.Event()
        for _ in range(_POOL_STREAMS):
            if self.stream.cuda_stream != beside:
                break
            self.stream = torch.cuda.Stream(device)


@cache
def _side_stream(device: torch.device, stream: int) -> _SideStream:
    """The stream beside `stream`."""
    return _SideStream(device, stream)


def launch_concurrently(first: Callable[[], None], second: Callable[[], None], device: torch.device) -> None:
    """Launches `first` on the current stream, `second` on another, which first waits for it and which it then waits for.

    What they read and write is allocated on the current stream before; what one launch alone needs, on its own stream.
    """
    if torch._C._cuda_getDevice() != device.index:
        with torch.cuda.device(device):
            return launch_concurrently(first, second, device)
    if (recorder := current_recorder()) is not None:
        first, second = recorder.side_by_side(first, second)
    current = torch.cuda.current_stream(device)
    other = _side_stream(device, current.cuda_stream)
    other.begin.record(current)
    other.stream.wait_event(other.begin)
    try:
        torch.cuda.set_stream(other.stream)
        try:
            second()
        finally:
            torch.cuda.set_stream(current)
        first()
    finally:  # the launch reads memory that the current stream may reuse
        other.end.record(other.stream)
        current.wait_event(other.end)
