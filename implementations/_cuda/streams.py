"""Launches that run side by side, as they need not wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch


@cache
def _side_stream(device: torch.device, stream: int) -> torch.cuda.Stream:
    """The stream beside `stream`, used by no other, so that a capture includes nobody else's launches."""
    return torch.cuda.Stream(device)


def launch_concurrently(first: Callable[[], None], second: Callable[[], None], device: torch.device) -> None:
    """Launches `first` on the current stream, `second` on another, which first waits for it and which it then waits for.

    What they read and write is allocated on the current stream before; what one launch alone needs, on its own stream.
    """
    current = torch.cuda.current_stream(device)
    other = _side_stream(device, current.cuda_stream)
    other.wait_stream(current)
    try:
        with torch.cuda.stream(other):
            second()
        first()
    finally:  # the launch reads memory that the current stream may reuse
        current.wait_stream(other)
