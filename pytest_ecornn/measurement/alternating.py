"""Times of several ways to do one thing, in blocks that alternate: by a CUDA device's events, A B C C B A, or by wall clock.

A ratio is taken of blocks of one round, so that what drifts over the run (clocks, the host's other work) is in both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from random import Random
from typing import Any

import torch

from pytest_ecornn.measurement.measurement import gc_disabled

BLOCK_US = 3e3
_UNTIMED = 2  # calls before a block by the wall clock
_MAX_CALLS = 64  # in such a block
Calls = Mapping[str, Callable[[], Any]]


@dataclass
class Arm:
    """One way: its calls, taken in turn, each of which does `work` equal pieces; a sample is the time of one piece.

    block_us: about how long a block is, of one call at least.
    """

    calls: Sequence[Callable[[], Any]]
    work: int = 1
    block_us: float = BLOCK_US
    samples_us: list[float] = field(default_factory=list)
    _block: int = 1
    _next: int = 0

    def calibrate(self) -> None:
        """Warms up, and finds how many calls make a block."""
        self._time_us(len(self.calls))
        self._block = max(1, ceil(self.block_us / max(1.0, self._time_us(1))))

    def run_block(self) -> None:
        """Adds a sample; one call before it is not timed, since it would measure what the arm before left in the caches."""
        self._call()
        self.samples_us.append(self._time_us(self._block) / self._block / self.work)

    def _time_us(self, count: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(count):
            self._call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    def _call(self) -> None:
        self.calls[self._next % len(self.calls)]()
        self._next += 1


def measure_interleaved(arms: Sequence[Arm], rounds: int) -> None:
    """Adds `rounds` samples to each arm; every other round runs backwards."""
    with gc_disabled():
        for arm in arms:
            arm.calibrate()
        for number in range(rounds):
            for arm in reversed(arms) if number % 2 else arms:
                arm.run_block()


class Replay:
    """A CUDA graph of what a call launches, over the same tensors each time; calling it replays the graph."""

    def __init__(self, call: Callable[[], Any]):
        self._call = call  # whose tensors the graph reads
        self._graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # what libraries set up at first use cannot be captured
                call()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            call()

    def __call__(self) -> None:
        self._graph.replay()


def sample(
    calls: Calls, device: torch.device, rounds: int, block_us: float, max_calls: int = _MAX_CALLS
) -> dict[str, list[float]]:
    """Wall-clock times in us of each call, one a round, by name. The device is idle before and after each block.

    A block lasts about `block_us`, and is of one call to `max_calls`.
    """
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
            done_us, returned_us = _block_us(calls[name], counts[name], device)
            done[name].append(done_us)
            returned[name].append(returned_us)
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
