"""Times of several ways to do one thing on a CUDA device, in blocks that alternate: A B C C B A, each block between two events.

A ratio is taken of blocks of one round, so that what drifts over the run (clocks, the host's other work) is in both.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import torch

BLOCK_US = 3e3


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
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for arm in arms:
            arm.calibrate()
        for number in range(rounds):
            for arm in reversed(arms) if number % 2 else arms:
                arm.run_block()
    finally:
        if was_enabled:
            gc.enable()


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
