"""Device-only time: calls captured as CUDA graphs and replayed, without the host's part.

A graph is bound to its addresses, so each arm has several, replayed in turn: where their buffers together exceed the L2, none
finds its inputs there (small calls do: there are at most 16), but two where that is nothing beside a long call. Before each
block x, states and gradients given get new contents from the pool, so a replay that does not read them is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from pytest_ecornn.measurement.clocks import Timer
from pytest_ecornn.measurement.kept import SpotChecks
from pytest_ecornn.measurement.measurement import Timed, block_counts, block_growth
from pytest_ecornn.measurement.pool import CallPool, PreparedCall


@dataclass(eq=False)
class Graph:
    """One captured call on static buffers. `replay` fills `result` from what stands in the call's inputs."""

    call: Any
    result: Any
    replay: Callable[[], Any]


class GraphArm:
    """An implementation timed by replays of graphs, in turn."""

    def __init__(self, candidate: Timed, pool: CallPool, graphs: Sequence[Graph]):
        self.candidate, self.graphs = candidate, list(graphs)
        self.samples_us: list[float] = []
        self.kept = SpotChecks(candidate.result_bytes, candidate.device)
        self.calls = self.settling = 1
        self._seconds = 0.0  # of a replay, about, as calibrated
        self._pool, self._turns = pool, cycle(self.graphs)

    def fresh(self) -> GraphArm:
        arm = GraphArm(self.candidate, self._pool, self.graphs)
        arm.calls, arm.settling, arm._seconds = self.calls, self.settling, self._seconds
        return arm

    def calibrate(self, clock: Timer) -> None:
        count = len(self.graphs)
        count, _ = block_counts(self._replay(clock, self._next(count)) / count)  # a graph's first launch uploads it
        self._seconds = min(self._replay(clock, self._next(count)) for _ in range(3)) / count
        self.calls, self.settling = block_counts(self._seconds)

    def block(self, clock: Timer, is_settled: bool) -> None:
        """Always after untimed replays: new contents have just gone through the cache.

        Graphs that are not replayed, since a block has fewer calls, keep their contents; those of timed replays are judged.
        """
        first, timed = self._next(self.settling), self._next(self.calls)
        prepared = {graph: self._prepare(graph) for graph in dict.fromkeys([*first, *timed])}
        self._replay(clock, first)
        seconds = self._replay(clock, timed) / self.calls
        self.samples_us.append(seconds * 1e6)
        checked = list(dict.fromkeys(timed))
        self.kept.take([prepared[graph] for graph in checked], [graph.result for graph in checked])
        if (growth := block_growth(self._seconds, seconds)) > 1:
            self._seconds, self.calls, self.settling = seconds, growth * self.calls, growth * self.settling

    def _prepare(self, graph: Graph) -> PreparedCall:
        """New contents for the graph, and in training the weights of this block."""
        changes = self._pool.weight_changes
        change = changes.begin_block(self.candidate.weights, len(self.samples_us)) if changes else 0.0
        return self._pool.prepare_replay(graph.call, change)

    def _next(self, count: int) -> list[Graph]:
        return list(islice(self._turns, count))

    @staticmethod
    def _replay(clock: Timer, graphs: Sequence[Graph]) -> float:
        return clock.time([graph.replay for graph in graphs])
