"""Wall-clock times of calls that take turns in blocks, the device idle before and after each block."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import ceil
from random import Random
from typing import Any

import torch

_UNTIMED = 2  # calls before a block
_MAX_CALLS = 64  # in a block
Calls = Mapping[str, Callable[[], Any]]


def sample(
    calls: Calls, device: torch.device, rounds: int, block_us: float, max_calls: int = _MAX_CALLS
) -> dict[str, list[float]]:
    """Times in us of each call, one a round, by name. A block lasts about `block_us`, and is of one call to `max_calls`."""
    return sample_launches(calls, device, rounds, block_us, max_calls)[0]


def sample_launches(
    calls: Calls, device: torch.device, rounds: int, block_us: float, max_calls: int = _MAX_CALLS
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The times of `sample`, and of the same blocks the times until the calls have returned."""
    counts = {name: _calls_per_block(call, device, block_us, max_calls) for name, call in calls.items()}
    done: dict[str, list[float]] = {name: [] for name in calls}
    returned: dict[str, list[float]] = {name: [] for name in calls}
    order, random = list(calls), Random(0)
    for _ in range(rounds):
        random.shuffle(order)  # none is always after the same one
        for name in order:
            for _ in range(_UNTIMED):
                calls[name]()
            block = _block_us(calls[name], counts[name], device)
            done[name].append(block[0])
            returned[name].append(block[1])
    return done, returned


def _calls_per_block(call: Callable[[], Any], device: torch.device, block_us: float, max_calls: int) -> int:
    return max(1, min(max_calls, ceil(block_us / max(_block_us(call, 2, device)[0], 1.0))))


def _block_us(call: Callable[[], Any], count: int, device: torch.device) -> tuple[float, float]:
    """Time of a call in us until the device is done, and until the calls have returned."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        call()
    returned = time.perf_counter()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) * 1e6 / count, (returned - start) * 1e6 / count
