"""Device-only time: calls captured as CUDA graphs and replayed, without the host's part.

A graph is bound to its addresses, so each arm has several, replayed in turn: where their buffers together exceed the L2, none
finds its inputs there (small calls do: there are at most 16), but two where that is nothing beside a long call. Before each
block x, states and gradients given get new contents from the pool, so a replay that does not read them is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from math import ceil
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.measurement.clocks import Timer
from pytest_ecornn.measurement.kept import SpotChecks, result_bytes, tensors
from pytest_ecornn.measurement.measurement import Arm, block_counts, gc_disabled
from pytest_ecornn.measurement.pool import Contents, InputPool, Prepared
from pytest_ecornn.system.graphs import GraphCapture, NotCaptured
from pytest_ecornn.verification.calls import Call
from pytest_ecornn.verification.verification import Candidate

MAX_CALL_SECONDS = 0.2  # as called; beyond, a graph would have too many kernels
CAPTURE_SECONDS = 2.0
FEWEST_GRAPHS, MOST_GRAPHS = 2, 16
_CACHE_FACTOR = 1.5  # how often the graphs' inputs and outputs fill the L2
_SLOW_MEMORY, _NEGLIGIBLE_SHARE = (
    2.5e11,
    1e-3,
)  # bytes a second; a share of a call's time that reading them from memory may take


@dataclass(eq=False)
class Graph:
    """One captured call on static buffers. `replay` fills `result` from what stands in the call's inputs."""

    call: Call
    result: Any
    replay: Callable[[], Any]

    def refresh(self, problem: Problem) -> None:
        """Puts the contents of `problem` where the graph reads. Lengths, which the host read at the capture, stay."""
        for static, new in zip(_refreshed(self.call.problem), _refreshed(problem), strict=True):
            static.copy_(new)

    def prepare_replay(self, drawn: Contents) -> Prepared:
        """`refresh` by what is drawn."""
        own = self.call.problem
        self.refresh(drawn.problem(own.weights))
        return Prepared(replace(drawn, pool=replace(drawn.pool, lengths=own.lengths)), self.call)


def _refreshed(problem: Problem) -> list[Tensor]:
    return [problem.x, *problem.state, *([] if problem.resets is None else [problem.resets]), *problem.output_gradients]


class GraphArm:
    """An implementation timed by replays of graphs, in turn."""

    def __init__(self, candidate: Candidate, pool: InputPool, graphs: Sequence[Graph]):
        self.candidate, self.graphs = candidate, list(graphs)
        self.samples_us: list[float] = []
        self.kept = SpotChecks(result_bytes(candidate), candidate.case.device)
        self.calls = self.settling = 1
        self._pool, self._turns = pool, cycle(self.graphs)

    def calibrate(self, clock: Timer) -> None:
        count = len(self.graphs)
        count, _ = block_counts(self._replay(clock, self._next(count)) / count)  # a graph's first launch uploads it
        self.calls, self.settling = block_counts(min(self._replay(clock, self._next(count)) for _ in range(3)) / count)

    def block(self, clock: Timer, is_settled: bool) -> None:
        """Always after untimed replays: new contents have just gone through the cache.

        Graphs that are not replayed, since a block has fewer calls, keep their contents; those of timed replays are judged.
        """
        first, timed = self._next(self.settling), self._next(self.calls)
        prepared = {graph: graph.prepare_replay(self._pool.next_problem()) for graph in dict.fromkeys([*first, *timed])}
        self._replay(clock, first)
        self.samples_us.append(self._replay(clock, timed) / self.calls * 1e6)
        checked = list(dict.fromkeys(timed))
        self.kept.take([prepared[graph] for graph in checked], [graph.result for graph in checked])

    def _next(self, count: int) -> list[Graph]:
        return list(islice(self._turns, count))

    @staticmethod
    def _replay(clock: Timer, graphs: Sequence[Graph]) -> float:
        return clock.time([graph.replay for graph in graphs])


def graph_arms(called: Sequence[Arm]) -> tuple[list[GraphArm], list[str]]:
    """Graphs of arms that were timed as called; none at all where the first has none. And why some are missing."""
    arms: list[GraphArm] = []
    missing: list[str] = []
    with gc_disabled():  # what is freed may not be, during a capture
        for arm in called:
            try:
                arms.append(_captured(arm))
            except NotCaptured as reason:
                missing.append(f"no device-only time of {arm.candidate.name}: {reason}")
                if arm is called[0]:
                    break
    return arms, missing


def graph_count(call_bytes: int, cache_bytes: int, seconds: float = 0.0) -> int:
    """How many graphs of calls that read and write so much it takes to exceed the cache; the fewest where calls are so long
    that it does not matter.
    """
    if call_bytes <= _NEGLIGIBLE_SHARE * _SLOW_MEMORY * seconds:
        return FEWEST_GRAPHS
    return min(MOST_GRAPHS, max(FEWEST_GRAPHS, ceil(_CACHE_FACTOR * cache_bytes / max(1, call_bytes))))


def _captured(arm: Arm) -> GraphArm:
    candidate, pool, case = arm.candidate, arm.pool, arm.candidate.case
    if arm.seconds > MAX_CALL_SECONDS:
        raise NotCaptured(f"a call takes {arm.seconds:.2g} s, over {MAX_CALL_SECONDS:g} s")
    start, graphs = time.perf_counter(), list[Graph]()
    with torch.set_grad_enabled(case.training):
        capturing, call = GraphCapture(case.device), Call(pool.copied_problem(candidate.weights))
        result = capturing.warm_up(partial(call.forward_backward, candidate.layer))
        cache_bytes = torch.cuda.get_device_properties(case.device).L2_cache_size
        wanted = graph_count(_moved_bytes(call.problem, result), cache_bytes, arm.seconds)
        del result
        while not graphs or (len(graphs) < wanted and time.perf_counter() - start < CAPTURE_SECONDS):
            call = Call(pool.copied_problem(candidate.weights))
            graph, result = capturing.capture(partial(call.forward_backward, candidate.layer))
            graphs.append(Graph(call, result, graph.replay))
    return GraphArm(candidate, pool, graphs)


def _moved_bytes(problem: Problem, result: Any) -> int:
    """Inputs and outputs, without the weights, which every call shares."""
    return sum(
        tensor.nbytes for tensor in tensors((problem.x, problem.state, problem.resets, problem.output_gradients, result))
    )
