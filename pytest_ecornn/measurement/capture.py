"""Captures arms as CUDA graphs, one of each arm in turn.

What is captured in a row lies side by side in memory, and a short call's time changes by some percent with the place. In turn,
no arm has a place for itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Any

import torch

from pytest_ecornn.measurement.kept import tensors
from pytest_ecornn.measurement.measurement import Arm, gc_disabled
from pytest_ecornn.measurement.replay import Graph, GraphArm
from pytest_ecornn.system.graphs import GraphCapture, NotCaptured
from pytest_ecornn.verification.calls import tree_map_tensors

MAX_CALL_SECONDS = 0.2  # as called; beyond, a graph would have too many kernels
CAPTURE_SECONDS = 2.0  # of an arm
FEWEST_GRAPHS, MOST_GRAPHS = 2, 16
_CACHE_FACTOR = 1.5  # how often the graphs' inputs and outputs fill the L2
# Bytes a second; a share of a call's time that reading them from memory may take.
_SLOW_MEMORY, _NEGLIGIBLE_SHARE = 2.5e11, 1e-3


class ArmCapture:
    """An arm, warmed up, and its graphs so far. Raises NotCaptured where it has none, when it is made or a graph is added."""

    def __init__(self, arm: Arm):
        if arm.seconds > MAX_CALL_SECONDS:
            raise NotCaptured(f"a call takes {arm.seconds:.2g} s, over {MAX_CALL_SECONDS:g} s")
        self.arm, self._graphs = arm, list[Graph]()
        start, device = time.perf_counter(), arm.candidate.device
        if arm.pool.weight_changes:
            arm.pool.weight_changes.put(arm.candidate.weights, 0.0)
        self._capturing = GraphCapture(device)
        _, result = self._call(self._capturing.warm_up)
        cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._wanted = graph_count(arm.pool.call_bytes + _bytes(result), cache_bytes, arm.seconds)
        self._seconds = time.perf_counter() - start

    @property
    def is_complete(self) -> bool:
        """Whether it has as many graphs as it needs, or as time allows."""
        count = len(self._graphs)
        return count >= self._wanted or (count > 0 and self._seconds > CAPTURE_SECONDS)

    def add(self) -> None:
        """Captures one more graph."""
        start = time.perf_counter()
        call, (graph, result) = self._call(self._capturing.capture)
        self._graphs.append(Graph(call, result, graph.replay))
        self._seconds += time.perf_counter() - start

    def _call(self, make: Callable[[Callable[[], Any]], Any]) -> tuple[Any, Any]:
        """A call at addresses of its own, and what `make` makes of it.

        Its history is dropped. It would tie the weights to the capture's stream, for later calls on another.
        """
        candidate = self.arm.candidate
        call = self.arm.pool.static_call(candidate.weights)
        with torch.set_grad_enabled(candidate.is_training):
            return call, tree_map_tensors(torch.Tensor.detach, make(partial(call.forward_backward, candidate.layer)))

    def captured(self) -> GraphArm:
        """The arm of its graphs."""
        return GraphArm(self.arm.candidate, self.arm.pool, self._graphs)


def graph_arms(called: Sequence[Arm]) -> tuple[list[GraphArm], list[str]]:
    """Graphs of arms that were timed as called; none at all where the first has none. And why some are missing."""
    captures, missing = list[ArmCapture](), list[str]()

    def is_first_lost(arm: Arm, reason: NotCaptured) -> bool:
        missing.append(f"no device-only time of {arm.candidate.name}: {reason}")
        return arm is called[0]

    with gc_disabled():  # what is freed may not be, during a capture
        for arm in called:
            try:
                captures.append(ArmCapture(arm))
            except NotCaptured as reason:
                if is_first_lost(arm, reason):
                    return [], missing
        turn = 0
        while incomplete := [one for one in captures if not one.is_complete]:
            for one in incomplete if turn % 2 == 0 else reversed(incomplete):
                try:
                    one.add()
                except NotCaptured as reason:
                    captures.remove(one)
                    if is_first_lost(one.arm, reason):
                        return [], missing
            turn += 1
    return [one.captured() for one in captures], missing


def graph_count(call_bytes: int, cache_bytes: int, seconds: float = 0.0) -> int:
    """How many graphs of calls that read and write so much it takes to exceed the cache; the fewest where calls are so long
    that it does not matter.
    """
    if call_bytes <= _NEGLIGIBLE_SHARE * _SLOW_MEMORY * seconds:
        return FEWEST_GRAPHS
    return min(MOST_GRAPHS, max(FEWEST_GRAPHS, ceil(_CACHE_FACTOR * cache_bytes / max(1, call_bytes))))


def _bytes(result: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors(result))
