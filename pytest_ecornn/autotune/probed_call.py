"""A candidate that is timed: blocks of its calls, and of replays of a CUDA graph of one."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil
from statistics import median
from typing import Any

import torch

from pytest_ecornn.system.graphs import discard_graph

_BLOCK_US = 1000.0
_MAX_BLOCK = 16
_SHORT_US = 2000.0
_REPEATED_US = 1e4  # the longest call that is sampled again before it is held to be hopeless
_NEVER_US = 1e9  # of a graph that there is not
_DEVICE_BOUND, _MIN_DEVICE_BOUND_US = 1.3, 4e3  # a call's time over the host's, and at least


class ProbedCall:
    """A candidate at one length: its call, its graph and the samples of both, in us a call."""

    def __init__(self, call: Callable[[], object], device: torch.device):
        self._call, self._device = call, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._called: list[float] = []
        self._replayed: list[float] = []
        self._block_us(call, 1)  # which compiles what is compiled at the first call
        if device.type == "cuda" and self._block_us(call, 1) < _REPEATED_US:
            self._block_us(call, 1)  # a module's second call of a kind finds its short form, which the third records

    def warm_up(self) -> None:
        """Makes one call, the first sample, and a few more of a short one, whose first calls take longer."""
        start = time.perf_counter()
        self._call()
        self._host_us = (time.perf_counter() - start) * 1e6
        self._synchronize()
        self._called.append((time.perf_counter() - start) * 1e6)
        if self._device.type == "cpu" and _SHORT_US <= self._called[0] < _REPEATED_US:
            self._called.append(self._block_us(self._call, 1))  # another process may have had the core for milliseconds
        if self.called_us < _SHORT_US:
            self._called.append(self._block_us(self._call, 3))

    def repeat(self) -> None:
        """Adds a sample of a call that is not long: the host's other work may have slowed the ones before."""
        if not self.is_device_bound and self.called_us < _REPEATED_US:
            self._called.append(self._block_us(self._call, 1))

    @property
    def is_device_bound(self) -> bool:
        """Whether the device works for so long that the host waits for it: then a graph is about as fast as the call."""
        return self.called_us > max(_DEVICE_BOUND * self._host_us, _MIN_DEVICE_BOUND_US)

    def capture(self, pool: Any) -> None:
        """Captures the call, unless a graph of it would only be as fast. What cannot be captured never wins on the device."""
        if self.is_device_bound:
            return
        try:
            self._graph = _capture(self._call, pool, self._device)
            self._block_us(self._graph.replay, 1)  # which uploads the graph
            self._replayed.append(self._block_us(self._graph.replay, 1))
        except Exception:
            self._graph, self._replayed = None, [_NEVER_US]

    @property
    def blocks_us(self) -> float:
        """Estimated us of `run_blocks`."""
        columns = (self.called_us, self.device_us)[: 1 + (self._graph is not None)]
        return sum(_calls_per_block(call_us) * call_us for call_us in columns)

    def run_blocks(self) -> None:
        self._called.append(self._block_us(self._call, _calls_per_block(self.called_us)))
        if self._graph is not None:
            self._replayed.append(self._block_us(self._graph.replay, _calls_per_block(self.device_us)))

    @property
    def called_us(self) -> float:
        return min(self._called)

    @property
    def device_us(self) -> float:
        return min(self._replayed) if self._replayed else self.called_us

    @property
    def spreads(self) -> list[float]:
        """Median over least of the samples that other work on the device disturbs."""
        samples = self._replayed or self._called
        return [median(samples) / min(samples)] if len(samples) > 2 else []

    def _block_us(self, call: Callable[[], object], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        self._synchronize()
        return (time.perf_counter() - start) * 1e6 / count

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()


def _calls_per_block(call_us: float) -> int:
    return min(_MAX_BLOCK, ceil(_BLOCK_US / call_us))


def _capture(call: Callable[[], object], pool: Any, device: torch.device) -> torch.cuda.CUDAGraph:
    """A graph of the call. All of a measurement share a pool: each replay writes before it reads."""
    graph = torch.cuda.CUDAGraph()
    try:
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        call()
        graph.capture_end()
    except BaseException:
        discard_graph(graph, pool, torch.cuda.current_device())
        raise
    return graph
