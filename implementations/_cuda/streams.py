"""Launches that need not wait for each other, side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch


@cache
def _beside(device: torch.device, stream: int) -> torch.cuda.Stream:
    """Each stream has one of its own: what it captures is nobody else's."""
    return torch.cuda.Stream(device)


def launch_beside(first: Callable[[], None], second: Callable[[], None], device: torch.device) -> None:
    """The first on the current stream, the second on another, which waits for the current one and it for that.

    What they read and write is allocated on the current stream before, what a launch needs beside on its own.
    """
    current = torch.cuda.current_stream(device)
    other = _beside(device, current.cuda_stream)
    other.wait_stream(current)
    try:
        with torch.cuda.stream(other):
            second()
        first()
    finally:  # what was launched reads memory that the current stream may have back
        current.wait_stream(other)
