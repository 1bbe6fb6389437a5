"""Launches that need not wait for each other, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch


@cache
def _side(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def launch_all(launches: Sequence[Callable[[], None]], device: torch.device, beside: bool) -> None:
    """The first on the current stream, with `beside` the others on another, which waits for the current one and it for that.

    What they need is to be allocated on the current stream before.
    """
    first, *others = launches
    if not beside or not others or device.type != "cuda":
        for launch in launches:
            launch()
        return
    current, side = torch.cuda.current_stream(device), _side(device)
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side):
            for launch in others:
                launch()
        first()
    finally:  # what was launched reads memory that the current stream may have back
        current.wait_stream(side)
